# Programs that hang or disagree, with real processes.
SCENARIO := $(BUILD)/tests/scenarios/scenario
$(SCENARIO): $(call obj,$(wildcard tests/scenarios/*.c)) $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD)/lib -lpsd -lm '-Wl,-rpath,$$ORIGIN/../../lib'

.PHONY: scenarios
scenarios: all $(SCENARIO) ## hangs and mismatches: are they explained, and their legal twins left alone?
	@tests/run.sh $(BUILD) scenarios

tests-build: $(SCENARIO)
