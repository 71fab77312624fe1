# Tests of the NCCL backend over the device simulator, and its comparison with raw NCCL calls.
NCCL_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/gpu/test_nccl_*.c))
NCCL_RAW   := $(BUILD)/tests/gpu/raw_nccl

.PHONY: gpu-nccl
ifeq ($(NCCL_FOUND),)
gpu-nccl:
	@echo 'gpu-nccl: skipped: no headers of CUDA and NCCL (CUDA_HOME, NCCL_HOME)'
else
$(call obj,$(wildcard tests/gpu/*.c)): ALL_CFLAGS += $(NCCL_CPPFLAGS)
$(NCCL_TESTS): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/obj/tests/gpu/nccl_ranks.o $(WORKER_LIB) $(LIBPSD_DEPS)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBPSD_LIBS)
# As a user's program, with psd.h, beside NCCL as the backend opens it.
$(NCCL_RAW): $(BUILD)/obj/tests/gpu/raw_nccl.o $(BUILD)/obj/worker/backend/nccl/libs.o $(COMMON_LIB) $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD)/lib -lpsd $(COMMON_LIB) -ldl -lm '-Wl,-rpath,$$ORIGIN/../../lib'
gpu-nccl: $(NCCL_TESTS) $(NCCL_RAW) $(NCCL_PLUGIN) $(GPUSIM_RT) $(GPUSIM_NCCL) ## tests of the NCCL backend over the device simulator
tests-build gpu: $(NCCL_TESTS) $(NCCL_RAW)
endif
