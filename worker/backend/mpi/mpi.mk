# The mpi backend, where Open MPI can be found: by pkg-config, else by mpicc. MPICC=none builds without.
MPICC ?= mpicc
ifneq ($(MPICC),none)
MPI_CFLAGS := $(shell pkg-config --cflags ompi-c 2>/dev/null || $(MPICC) --showme:compile 2>/dev/null)
MPI_LIBS := $(shell pkg-config --libs ompi-c 2>/dev/null || $(MPICC) --showme:link 2>/dev/null)
endif

MPI_PLUGIN := $(BUILD)/lib/psd/psd_backend_mpi.so
ifneq ($(strip $(MPI_LIBS)),)
MPI_SRC := $(wildcard worker/backend/mpi/*.c)
# The schedules of collectives and their arithmetic, and what the library shares with its backends.
MPI_SHARED_SRC := $(wildcard worker/backend/host/coll*.c) $(wildcard worker/backend/host/reduce*.c) \
                  worker/backend/mpi_launch.c worker/backend/fingerprint.c
MPI_SHARED_SRC := $(filter-out worker/backend/host/coll_run.c,$(MPI_SHARED_SRC))

# As system headers: they are not written for these warnings.
$(call obj,$(MPI_SRC)): ALL_CFLAGS += $(patsubst -I%,-isystem %,$(MPI_CFLAGS))
$(MPI_PLUGIN): $(call obj,$(MPI_SRC) $(MPI_SHARED_SRC)) $(COMMON_LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,--exclude-libs,ALL -o $@ $(filter %.o,$^) $(COMMON_LIB) $(MPI_LIBS) -ldl -lm
all: $(MPI_PLUGIN)
else
# Not one of another build.
all: no-mpi
.PHONY: no-mpi
no-mpi:
	@rm -f $(MPI_PLUGIN)
endif

# What needs no MPI is tested by itself.
$(BUILD)/tests/unit/test_mpi_frame: $(BUILD)/obj/worker/backend/mpi/frame.o
