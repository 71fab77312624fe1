# Tests of the mpi backend: `make mpi`. Programs as a user's, with the shared library and psd.h only.
MPI_TESTS :=
ifneq ($(strip $(MPI_LIBS)),)
MPI_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/mpi/*.c))

$(BUILD)/obj/tests/mpi/own_mpi.o: ALL_CFLAGS += $(patsubst -I%,-isystem %,$(MPI_CFLAGS))
$(BUILD)/tests/mpi/own_mpi: MPI_TEST_LIBS := $(MPI_LIBS)
$(MPI_TESTS): $(BUILD)/%: $(BUILD)/obj/%.o $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $< -L$(BUILD)/lib -lpsd $(MPI_TEST_LIBS) '-Wl,-rpath,$$ORIGIN/../../lib'
endif

.PHONY: mpi
mpi: all $(CONFORMANCE) $(MPI_TESTS) $(BUILD)/tests/programs/rounds ## the mpi backend under mpirun
	@tests/run.sh $(BUILD) mpi

tests-build: $(MPI_TESTS)
