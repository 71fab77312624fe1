# Benchmarks: compare and the ranks of the systems that it compares. MPI, Gloo and OpenBLAS are optional: what needs one
# that this machine lacks is not built, and run.sh says so.

BENCH_DIR  := $(BUILD)/tests/bench
COMPARE    := $(BENCH_DIR)/compare
BENCH_RANKS := $(BENCH_DIR)/rank_psd
BENCH_MPICC := $(shell command -v mpicc 2>/dev/null)
BENCH_GLOO  := $(wildcard /usr/include/gloo/allreduce.h)
BENCH_BLAS  := $(shell pkg-config --exists openblas 2>/dev/null && echo yes)
BENCH_RANKS += $(if $(BENCH_MPICC),$(BENCH_DIR)/rank_mpi)
BENCH_RANKS += $(if $(BENCH_GLOO),$(BENCH_DIR)/rank_gloo)

bench_obj = $(call obj,$(addprefix tests/bench/,$(1)))

$(COMPARE): $(call bench_obj,compare.c compare_args.c systems.c rounds.c tables.c limits.c stats.c) $(COMMON_LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^

$(BENCH_DIR)/rank_psd: $(call bench_obj,rank_psd.c rank.c) $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD)/lib -lpsd '-Wl,-rpath,$$ORIGIN/../../lib'

# MPI's own header is not as strict as the warnings.
$(BENCH_DIR)/rank_mpi: tests/bench/rank_mpi.c $(call bench_obj,rank.c) tests/bench/rank.h tests/bench/channel.h
	@mkdir -p $(@D)
	$(call say,MPICC,$@)
	$(Q)$(BENCH_MPICC) $(BASE_CFLAGS) -Wall -Wextra -Werror $(OPT) $(CFLAGS) -o $@ $(filter %.c %.o,$^) $(ALL_LDFLAGS)

$(BENCH_DIR)/rank_gloo: tests/bench/rank_gloo.cc $(call bench_obj,rank.c) tests/bench/rank.h tests/bench/channel.h
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(CXX) -std=c++17 -I. -Wall -Wextra -Wno-unused-parameter $(OPT) $(SANFLAGS) -o $@ $(filter %.cc %.o,$^) -lgloo -pthread

bench: $(COMPARE) $(BENCH_RANKS)

# The unit test of what is pure.
$(BUILD)/tests/unit/test_bench_stats: $(call bench_obj,stats.c)

$(BENCH_DIR)/bench_heartbeats: $(call bench_obj,stats.c)

# The example whose matrix products are a BLAS's; without one it says so when it runs.
ifneq ($(BENCH_BLAS),)
$(BUILD)/obj/worker/examples/ddp_mlp.o: private ALL_CFLAGS += -O3 -DHAVE_CBLAS $(shell pkg-config --cflags openblas)
$(BUILD)/examples/ddp_mlp: private ALL_LDFLAGS += -Wl,--no-as-needed $(shell pkg-config --libs openblas)
endif
