# The wait-for graph against every interleaving of random programs.
WAITS_PROPERTY := $(BUILD)/tests/waits/property
WAITS_PROPERTY_SRC := $(addprefix tests/waits/,property.c program.c interpreter.c oracle.c snapshot.c unsafe.c)
$(WAITS_PROPERTY): $(call obj,$(WAITS_PROPERTY_SRC)) $(CORE_LIB) $(COMMON_LIB)
	$(call link_test,)

.PHONY: waits
waits: $(WAITS_PROPERTY) ## the wait-for graph against every interleaving, and ten and more bugs sown into it
	@tests/run.sh $(BUILD) waits mutants

tests-build: $(WAITS_PROPERTY)
