# All that `tests/run.sh BUILD gpu` runs. Where CUDA's headers are missing these variables are empty, and it skips.

GPU_TESTS := $(KERNELS_SIM_SO) $(KERNELS_EMULATED_SO) $(CHECK_KERNELS) $(GPUSIM_RT) $(GPUSIM_NCCL) $(GPUSIM_TESTS)
tests-build: $(GPU_TESTS)

.PHONY: gpu
gpu: all $(CONFORMANCE) $(TEST_PROGRAMS) $(GPU_TESTS) ## nccl over the device simulator; no GPU is needed
	@tests/run.sh $(BUILD) gpu
