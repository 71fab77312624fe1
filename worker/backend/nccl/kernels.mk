# The kernels of the device, where nvcc is: psd_kernels.so. And, where the CUDA headers are, the same table for the
# device simulator of the tests: psd_kernels_sim.so.

CUDA_HOME ?= /usr/local/cuda
CUDA_LIB  := $(firstword $(wildcard $(CUDA_HOME)/lib64/libcudart.so $(CUDA_HOME)/lib/libcudart.so))
NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc))
NVCC_ARCH := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]

ifneq ($(and $(NVCC),$(CUDA_LIB)),)
KERNELS_SO := $(BUILD)/lib/psd/psd_kernels.so
all: $(KERNELS_SO)

# Sanitizers and warnings of C are not nvcc's; the flags that decide over bits are the same.
$(BUILD)/obj/worker/backend/nccl/kernels.cu.o: worker/backend/nccl/kernels.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true $(NVCC_ARCH) -I. -Icommon -Xcompiler \
	    -fPIC,-fvisibility=hidden,-Wall,-Wextra -MD -MP -MF $(@:.o=.d) -c -o $@ $<
-include $(BUILD)/obj/worker/backend/nccl/kernels.cu.d

# The runtime is the one that the backend has loaded: shared, found by its soname.
$(KERNELS_SO): $(BUILD)/obj/worker/backend/nccl/kernels.cu.o $(BUILD)/obj/worker/backend/elements.o
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -o $@ $^ $(CUDA_LIB)
endif

ifneq ($(and $(CUDA_LIB),$(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h)),)
KERNELS_SIM_SO := $(BUILD)/lib/psd/psd_kernels_sim.so
$(BUILD)/obj/tests/gpu/kernels/%.o: ALL_CFLAGS += -isystem $(CUDA_HOME)/include
$(KERNELS_SIM_SO): $(BUILD)/obj/tests/gpu/kernels/kernels_sim.o $(BUILD)/obj/worker/backend/elements.o
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -o $@ $^ $(CUDA_LIB)
endif

# On a device, or on the simulator (see tests/gpu): the kernels against the processor, and their bandwidth.
CHECK_KERNELS := $(BUILD)/tests/gpu/check_kernels
$(CHECK_KERNELS): $(call obj,tests/gpu/check_kernels.c worker/backend/nccl/kernels_open.c worker/backend/elements.c) $(COMMON_LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ -ldl -lm

# kernels.cu for the processor: what each of its threads does, compared in CI.
CXX ?= c++
KERNELS_EMULATED_SO := $(BUILD)/tests/gpu/psd_kernels_emulated.so
$(KERNELS_EMULATED_SO): tests/gpu/kernels/emulate.cc tests/gpu/kernels/emulated/cuda_runtime.h \
    worker/backend/nccl/kernels.cu worker/backend/elements.h worker/backend/half.h worker/backend/kernels.h \
    $(BUILD)/obj/worker/backend/elements.o
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) -std=c++17 -O2 -g -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing -Wall -Wextra \
	    -Wno-unknown-pragmas $(SANFLAGS) -Itests/gpu/kernels/emulated -I. -Icommon -shared -o $@ $< $(filter %.o,$^) -pthread

# CUDA_HOME=none, or a machine without it: what an earlier build left must not be taken for this one's.
ifeq ($(KERNELS_SO),)
.PHONY: no-kernels
all: no-kernels
no-kernels:
	@rm -f $(BUILD)/lib/psd/psd_kernels.so $(BUILD)/lib/psd/psd_kernels_sim.so
endif
