# The NCCL backend: a shared object that links neither libnccl nor libcudart. Built where their headers are.
#   CUDA_HOME=dir NCCL_HOME=dir   where to look first; CUDA_HOME=none: nowhere
CUDA_HOME ?= /usr/local/cuda
NCCL_HOME ?=
NCCL_SRC  := $(wildcard worker/backend/nccl/*.c)
NCCL_INC  := $(sort $(patsubst %/cuda_runtime_api.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h \
                 /usr/local/cuda/include/cuda_runtime_api.h /usr/include/cuda_runtime_api.h))) \
               $(patsubst %/nccl.h,%,$(firstword $(wildcard $(if $(NCCL_HOME),$(NCCL_HOME)/include/nccl.h) \
                 $(CUDA_HOME)/include/nccl.h /usr/local/cuda/include/nccl.h \
                 $(shell pkg-config --variable=includedir nccl 2>/dev/null)/nccl.h /usr/include/nccl.h))))
NCCL_FOUND := $(if $(filter none,$(CUDA_HOME)),,$(and $(wildcard $(addsuffix /cuda_runtime_api.h,$(NCCL_INC))),$(wildcard $(addsuffix /nccl.h,$(NCCL_INC)))))

ifneq ($(NCCL_FOUND),)
NCCL_PLUGIN := $(BUILD)/lib/psd/psd_backend_nccl.so
NCCL_CPPFLAGS := $(foreach d,$(filter-out /usr/include,$(NCCL_INC)),-isystem $(d))

$(call obj,$(NCCL_SRC)): ALL_CFLAGS += $(NCCL_CPPFLAGS)
$(NCCL_PLUGIN): $(call obj,$(NCCL_SRC)) $(COMMON_LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(COMMON_LIB) -ldl -lm
all: $(NCCL_PLUGIN)
else
.PHONY: no-nccl
no-nccl: # one from an earlier build would be opened
	@rm -f $(BUILD)/lib/psd/psd_backend_nccl.so
all: no-nccl
endif
