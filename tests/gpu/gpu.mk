# The device simulator: libcudart and libnccl by soname, over host memory. Built where the headers of CUDA and
# NCCL are; elsewhere its targets say so and do nothing.
#   CUDA_HOME=dir NCCL_HOME=dir    where to look first; CUDA_HOME=none: nowhere

GPU_CUDA_INC := $(firstword $(foreach d,$(CUDA_HOME) $(CUDA_PATH) /usr/local/cuda,\
                  $(if $(wildcard $(d)/include/cuda_runtime_api.h),$(d)/include)) \
                  $(patsubst -I%,%,$(filter -I%,$(shell pkg-config --cflags-only-I cudart 2>/dev/null))))
GPU_NCCL_INC := $(firstword $(foreach d,$(NCCL_HOME) $(patsubst %/include,%,$(GPU_CUDA_INC)) /usr/local /usr,\
                  $(if $(wildcard $(d)/include/nccl.h),$(d)/include)) \
                  $(patsubst -I%,%,$(filter -I%,$(shell pkg-config --cflags-only-I nccl 2>/dev/null))))
GPU_FOUND := $(if $(filter none,$(CUDA_HOME)),,$(and $(GPU_CUDA_INC),$(GPU_NCCL_INC)))

.PHONY: gpu-sim gpu-sim-test gpu-sim-permissive
ifeq ($(GPU_FOUND),)
gpu-sim gpu-sim-test gpu-sim-permissive:
	@echo 'gpu: skipped: no headers of CUDA and NCCL (CUDA_HOME, NCCL_HOME)'
else

GPU_CUDA_MAJOR := $(shell sed -nE 's/^.define CUDART_VERSION +([0-9]+)[0-9]{3}$$/\1/p' $(GPU_CUDA_INC)/cuda_runtime_api.h)
GPU_CFLAGS  := -isystem $(GPU_CUDA_INC) $(if $(filter-out $(GPU_CUDA_INC) /usr/include,$(GPU_NCCL_INC)),-isystem $(GPU_NCCL_INC))
GPUSIM_DIR  := $(BUILD)/tests/gpu/sim
GPUSIM_RT   := $(GPUSIM_DIR)/libcudart.so.$(GPU_CUDA_MAJOR)
GPUSIM_NCCL := $(GPUSIM_DIR)/libnccl.so.2
GPUSIM_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/gpu/sim/tests/test_*.c))

$(BUILD)/obj/tests/gpu/%.o: ALL_CFLAGS += $(GPU_CFLAGS)

$(GPUSIM_RT): $(call obj,$(wildcard tests/gpu/sim/rt_*.c) tests/gpu/sim/settings.c)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(ALL_LDFLAGS) -o $@ $^

$(GPUSIM_NCCL): $(call obj,$(wildcard tests/gpu/sim/nc_*.c) tests/gpu/sim/settings.c) $(GPUSIM_RT)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(ALL_LDFLAGS) -o $@ $^ -lm '-Wl,-rpath,$$ORIGIN'

$(GPUSIM_TESTS): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/obj/tests/gpu/sim/tests/check.o $(GPUSIM_NCCL) $(GPUSIM_RT)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ -lm '-Wl,-rpath,$$ORIGIN/..'

gpu-sim: $(GPUSIM_RT) $(GPUSIM_NCCL) ## the device simulator (libcudart, libnccl over host memory)
gpu-sim-test: gpu-sim $(GPUSIM_TESTS) ## the simulator's own rules
	@tests/run.sh $(BUILD) gpu
gpu-sim-permissive: gpu-sim $(GPUSIM_TESTS) ## each rule of the simulator, weakened, must fail a test
	@tests/gpu/sim/permissive.sh $(BUILD) '$(CC)' '$(ALL_CFLAGS) $(GPU_CFLAGS)' '$(ALL_LDFLAGS)'
endif
