# Shared objects for the tests of the plugin loader.
TEST_PLUGINS := $(patsubst %.c,$(BUILD)/%.so,$(wildcard tests/plugins/psd_backend_*.c))

$(TEST_PLUGINS): $(BUILD)/%.so: $(BUILD)/obj/%.o
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -o $@ $<

$(BUILD)/tests/unit/test_plugins: | $(TEST_PLUGINS)
