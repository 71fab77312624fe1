# psd: build, test and run. `make help` lists the targets.
#
#   V=1               print the commands
#   CC=clang          another compiler
#   SAN=address|undefined|thread   build with a sanitizer (into build-$(SAN))
#   BUILD=dir         build into another directory
#   PREFIX=/usr/local DESTDIR=     where `make install` puts things

.DEFAULT_GOAL := all
VERSION := 0.1.0
ABI     := 0

CC      ?= gcc
SAN     ?=
BUILD   ?= build$(if $(SAN),-$(SAN))
PREFIX  ?= /usr/local
Q       := $(if $(V),,@)
say      = $(if $(V),,@printf '  %-7s %s\n' '$(1)' '$(2)')

# Packages are asked for once; a missing one is reported by the rule `deps-present`.
PKGS      := libzmq libprotobuf-c sqlite3 jansson libxxhash
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
ZMQ_LIBS  := $(shell pkg-config --libs libzmq 2>/dev/null)
PROTO_LIBS := $(shell pkg-config --libs libprotobuf-c 2>/dev/null)
SQL_LIBS  := $(shell pkg-config --libs sqlite3 2>/dev/null)
JSON_LIBS := $(shell pkg-config --libs jansson 2>/dev/null)
HASH_LIBS := $(shell pkg-config --libs libxxhash 2>/dev/null)
TEST_LIBS := $(shell pkg-config --libs criterion 2>/dev/null)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Werror
OPT  ?= -O2 -g
BASE_CFLAGS := -std=c11 -D_GNU_SOURCE -ffp-contract=off -fno-strict-aliasing -fPIC -fvisibility=hidden -pthread \
               -DPSD_VERSION='"$(VERSION)"' -I. -Icommon -Iworker $(PKG_CFLAGS)
ifeq ($(SAN),thread)
SANFLAGS := -fsanitize=thread
else ifneq ($(SAN),)
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
ALL_CFLAGS := $(BASE_CFLAGS) $(WARN) $(OPT) $(SANFLAGS) $(CFLAGS)
ALL_LDFLAGS := -pthread $(SANFLAGS) $(LDFLAGS)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

COMMON_SRC := $(wildcard common/*.c)
PROTO_SRC  := $(wildcard proto/*.c) $(wildcard proto/gen/*.c)
CORE_SRC   := $(wildcard server/core/*.c)
SERVER_SRC := $(wildcard server/*.c)
PSCTL_SRC  := $(wildcard server/psctl/*.c)
MODEL_SRC  := $(wildcard server/model/*.c)
WORKER_SRC := $(wildcard worker/*.c) $(wildcard worker/backend/*.c) $(wildcard worker/backend/host/*.c)
LAUNCH_SRC := $(wildcard worker/launch/*.c)
TOOL_SRC   := $(wildcard worker/tools/*.c)
EXAMPLE_SRC := $(wildcard worker/examples/*.c)

COMMON_LIB := $(BUILD)/lib/libpsd_common.a
PROTO_LIB  := $(BUILD)/lib/libpsd_proto.a
CORE_LIB   := $(BUILD)/lib/libpsd_core.a
MODEL_LIB  := $(BUILD)/lib/libpsd_model.a
WORKER_LIB := $(BUILD)/lib/libpsd.a
LAUNCH_LIB := $(BUILD)/lib/libpsd_launch.a
WORKER_SO  := $(BUILD)/lib/libpsd.so.$(ABI)

BIN      := $(BUILD)/bin
TOOLS    := $(patsubst worker/tools/%.c,$(BIN)/%,$(TOOL_SRC))
EXAMPLES := $(patsubst worker/examples/%.c,$(BUILD)/examples/%,$(EXAMPLE_SRC))
PROGRAMS := $(BIN)/psd $(BIN)/psctl $(TOOLS)

.PHONY: all
all: deps-present $(PROGRAMS) $(BUILD)/lib/libpsd.so $(EXAMPLES) ## build everything
	$(call say,BUILT,$(BIN): $(notdir $(PROGRAMS)))
	@deploy/found.sh $(BUILD)

.PHONY: deps-present
deps-present:
	@pkg-config --exists $(PKGS) || { echo "make: missing packages; run: make deps" >&2; exit 1; }

$(BUILD)/obj/proto/gen/%.o: proto/gen/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(BASE_CFLAGS) $(OPT) $(SANFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

define archive
	@mkdir -p $(@D)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
endef
$(COMMON_LIB): $(call obj,$(COMMON_SRC)); $(archive)
$(PROTO_LIB): $(call obj,$(PROTO_SRC)); $(archive)
$(CORE_LIB): $(call obj,$(CORE_SRC)); $(archive)
$(MODEL_LIB): $(call obj,$(MODEL_SRC)); $(archive)
$(WORKER_LIB): $(call obj,$(WORKER_SRC)); $(archive)
$(LAUNCH_LIB): $(call obj,$(LAUNCH_SRC)); $(archive)

LIBPSD_DEPS := $(PROTO_LIB) $(COMMON_LIB)
LIBPSD_LIBS := $(ZMQ_LIBS) $(PROTO_LIBS) $(HASH_LIBS) -ldl -lm

$(WORKER_SO): $(call obj,$(WORKER_SRC)) $(LIBPSD_DEPS) worker/libpsd.map
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libpsd.so.$(ABI) -Wl,--version-script=worker/libpsd.map $(ALL_LDFLAGS) \
	    -o $@ $(filter %.o,$^) $(LIBPSD_DEPS) $(LIBPSD_LIBS)
$(BUILD)/lib/libpsd.so: $(WORKER_SO)
	@ln -sf libpsd.so.$(ABI) $@

$(BIN)/psd: $(call obj,$(SERVER_SRC)) $(CORE_LIB) $(PROTO_LIB) $(COMMON_LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) $(PROTO_LIBS) $(SQL_LIBS) $(HASH_LIBS)
$(BIN)/psctl: $(call obj,$(PSCTL_SRC)) $(MODEL_LIB) $(CORE_LIB) $(PROTO_LIB) $(COMMON_LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) $(PROTO_LIBS) $(JSON_LIBS) $(HASH_LIBS)
$(TOOLS): $(BIN)/%: $(BUILD)/obj/worker/tools/%.o $(LAUNCH_LIB) $(WORKER_LIB) $(LIBPSD_DEPS)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBPSD_LIBS)
$(BIN)/psd-bench: $(call obj,$(wildcard worker/bench/*.c))

# The examples use only what a user has: psd.h and the shared library.
$(EXAMPLES): $(BUILD)/examples/%: $(BUILD)/obj/worker/examples/%.o $(BUILD)/lib/libpsd.so
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $< -L$(BUILD)/lib -lpsd -lm '-Wl,-rpath,$$ORIGIN/../lib'

include tests/tests.mk
# What only some machines can build: backends (nccl, mpi) and the device simulator.
-include $(wildcard worker/backend/*/*.mk) $(wildcard tests/*/*.mk)

.PHONY: gen
gen: ## regenerate proto/gen from proto/psd.proto
	$(call say,PROTOC,proto/psd.proto)
	$(Q)protoc-c --proto_path=proto --c_out=proto/gen psd.proto

.PHONY: deps
deps: ## install the Debian packages that are missing
	@deploy/install-deps.sh

.PHONY: demo
demo: deps ## install what is missing, build, train on the host backend
	@$(MAKE) --no-print-directory all
	@deploy/demo.sh $(BUILD)

.PHONY: install
install: all ## install programs, library, headers, psd.pc and man pages under PREFIX
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include
	$(Q)install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 755 $(WORKER_SO) $(DESTDIR)$(PREFIX)/lib
	$(Q)ln -sf libpsd.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libpsd.so
	$(Q)install -d $(DESTDIR)$(PREFIX)/lib/psd
	$(Q)for f in $(BUILD)/lib/psd/*.so; do if [ -e $$f ]; then install -m 755 $$f $(DESTDIR)$(PREFIX)/lib/psd; fi; done
	$(Q)install -m 644 worker/psd.h common/psd_types.h $(DESTDIR)$(PREFIX)/include
	$(Q)install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' deploy/psd.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/psd.pc
	$(Q)install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man7
	$(Q)install -m 644 $(wildcard deploy/man/*.1) $(DESTDIR)$(PREFIX)/share/man/man1
	$(Q)install -m 644 $(wildcard deploy/man/*.7) $(DESTDIR)$(PREFIX)/share/man/man7
	$(Q)deploy/ldconfig.sh '$(DESTDIR)' '$(PREFIX)/lib'

.PHONY: clean
clean: ## remove what was built
	$(Q)rm -rf build build-address build-undefined build-thread build-combinations

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14 | sed 's/^/  make /'

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
