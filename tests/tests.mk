# Tests, checks, fuzzers and benchmarks. Included by the top Makefile.

TEST_LIB_SRC := $(wildcard tests/lib/*.c)
TEST_LIB     := $(BUILD)/lib/libpsd_test.a
$(TEST_LIB): $(call obj,$(TEST_LIB_SRC)); $(archive)

UNIT        := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c))
INTEGRATION := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/integration/test_*.c))
TSAN        := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/tsan/tsan_*.c))
BENCHES     := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/bench_*.c))
TEST_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/programs/*.c))
PSIM        := $(BUILD)/tests/sim/psim
CONFORMANCE := $(BUILD)/tests/conformance/conformance
HOSTS       := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/hosts/*.c))
TEST_DEPS   := $(TEST_LIB) $(MODEL_LIB) $(CORE_LIB) $(WORKER_LIB) $(PROTO_LIB) $(COMMON_LIB)

# $(call link_test,libraries)
define link_test
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(1) $(LIBPSD_LIBS) $(JSON_LIBS)
endef

$(UNIT) $(INTEGRATION): $(BUILD)/%: $(BUILD)/obj/%.o $(TEST_DEPS)
	$(call link_test,$(TEST_LIBS))
$(TSAN) $(BENCHES): $(BUILD)/%: $(BUILD)/obj/%.o $(TEST_DEPS)
	$(call link_test,)
$(PSIM): $(call obj,$(wildcard tests/sim/*.c)) $(CORE_LIB) $(COMMON_LIB)
	$(call link_test,)
# As a user's programs: the shared library and psd.h only.
$(CONFORMANCE): $(call obj,$(wildcard tests/conformance/*.c))
$(TEST_PROGRAMS) $(HOSTS): $(BUILD)/%: $(BUILD)/obj/%.o
$(CONFORMANCE) $(TEST_PROGRAMS) $(HOSTS): $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) -L$(BUILD)/lib -lpsd -lm '-Wl,-rpath,$$ORIGIN/../../lib'

.PHONY: tests-build
tests-build: all $(UNIT) $(INTEGRATION) $(TEST_PROGRAMS) $(PSIM) $(CONFORMANCE)

.PHONY: test
test: deps ## install what is missing, build, run all tests
	-@deploy/install-deps.sh --mpi
	@$(MAKE) --no-print-directory tests-build
	@$(MAKE) --no-print-directory check-docs
	@tests/run.sh $(BUILD) unit sim waits integration conformance scenarios mpi gpu

.PHONY: unit sim integration conformance
unit: $(UNIT) ## run the unit tests only
sim: $(PSIM)
integration: all $(TEST_PROGRAMS) $(INTEGRATION)
conformance: all $(CONFORMANCE)
unit sim integration conformance:
	@tests/run.sh $(BUILD) $@

.PHONY: hosts
hosts: ## tests on several hosts (network namespaces) and under Slurm; needs root
	@deploy/install-deps.sh --hosts
	@$(MAKE) --no-print-directory all $(CONFORMANCE) $(HOSTS)
	@tests/run.sh $(BUILD) hosts

.PHONY: container
container: ## psd in podman containers; skipped, loudly, where podman cannot run
	-@deploy/install-deps.sh --container
	@$(MAKE) --no-print-directory all $(TEST_PROGRAMS)
	@tests/run.sh $(BUILD) container

# ---- checks

.PHONY: check
check: ## sanitizers, valgrind, purity, headers, generated code, lint
	@deploy/install-deps.sh --check
	@$(MAKE) --no-print-directory check-pure check-headers check-gen check-docs check-builds lint
	@tests/run.sh $(BUILD) mutants
	@$(MAKE) --no-print-directory check-address check-thread check-valgrind

.PHONY: check-address
check-address: ## unit, simulator and integration tests under ASan and UBSan
	@$(MAKE) --no-print-directory SAN=address tests-build
	@tests/run.sh build-address unit sim integration gpu

.PHONY: check-thread
check-thread: ## the plain-main tests under TSan
	@$(MAKE) --no-print-directory SAN=thread tsan-build
	@tests/run.sh build-thread tsan
.PHONY: tsan-build
tsan-build: $(TSAN)

.PHONY: check-valgrind
check-valgrind: tests-build ## simulator, an example and psd under valgrind
	@tests/valgrind.sh $(BUILD)

.PHONY: check-pure
check-pure: $(CORE_LIB) $(COMMON_LIB) ## the core calls nothing but memory and strings
	@tests/check-pure.sh $(CORE_LIB) $(COMMON_LIB)

.PHONY: check-headers
check-headers: ## every header compiles alone; psd.h also as C++
	@tests/check-headers.sh '$(CC)' '$(BASE_CFLAGS) $(WARN)'

.PHONY: check-gen
check-gen: ## proto/gen is what protoc-c makes of psd.proto
	@tests/check-gen.sh

.PHONY: check-docs
check-docs: ## psd-environment(7) has the variables that the sources name
	@tests/check-docs.sh

.PHONY: check-builds
check-builds: ## build with and without CUDA and MPI, and ask for what is missing
	@tests/check-builds.sh

.PHONY: lint
lint: ## clang-format, clang-tidy, cppcheck
	@tests/lint.sh '$(filter-out -DPSD_VERSION=%,$(BASE_CFLAGS))'

# ---- fuzzers: clang's libFuzzer, each for FUZZ_SECONDS

FUZZ_SECONDS ?= 60
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZERS  := $(patsubst tests/fuzz/%.c,build-fuzz/%,$(FUZZ_SRC))
FUZZ_LIB_SRC := $(COMMON_SRC) $(PROTO_SRC) $(CORE_SRC) $(MODEL_SRC)
build-fuzz/%: tests/fuzz/%.c $(FUZZ_LIB_SRC)
	@mkdir -p $(@D)
	$(call say,FUZZER,$@)
	$(Q)clang $(BASE_CFLAGS) -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o $@ $< \
	    $(FUZZ_LIB_SRC) $(PROTO_LIBS) $(HASH_LIBS) $(JSON_LIBS)

.PHONY: fuzz
fuzz: ## fuzz the wire, the core, models and layouts, FUZZ_SECONDS each
	@deploy/install-deps.sh --check
	@$(MAKE) --no-print-directory $(FUZZERS)
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZERS)

# ---- long runs

.PHONY: bench
bench: all $(BENCHES) ## measure: tables with the machine's own limits beside
	@tests/bench/run.sh $(BUILD)

.PHONY: bench-hosts
bench-hosts: all $(HOSTS) ## measure between two hosts beside a plain TCP stream; needs root
	@tests/hosts/bench.sh $(BUILD)

.PHONY: soak
soak: tests-build ## tests over and over for SOAK_MINUTES (default 30), fuzzers for longer
	@tests/soak.sh $(BUILD) $(or $(SOAK_MINUTES),30)
