# All that `tests/run.sh BUILD gpu` runs. Where CUDA's headers are missing these variables are empty, and it skips.

GPU_TESTS := $(if $(KERNELS_SIM_SO),$(BUILD)/tests/gpu/streams) $(KERNELS_SIM_SO) $(KERNELS_EMULATED_SO) $(CHECK_KERNELS) $(GPUSIM_RT) $(GPUSIM_NCCL) $(GPUSIM_TESTS)
tests-build: $(GPU_TESTS)

.PHONY: gpu
gpu: all $(CONFORMANCE) $(TEST_PROGRAMS) $(GPU_TESTS) ## nccl over the device simulator; no GPU is needed
	@tests/run.sh $(BUILD) gpu

# As a user's program: the shared library and psd.h only.
GPU_STREAMS := $(BUILD)/tests/gpu/streams
$(GPU_STREAMS): $(BUILD)/obj/tests/gpu/streams.o $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $< -L$(BUILD)/lib -lpsd -ldl '-Wl,-rpath,$$ORIGIN/../../lib'
