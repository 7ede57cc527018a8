# Sibyl. `make help` lists the targets; `make demo` and `make check` work as the first command.
# Variables: CC, BUILD (output folder), SAN (address,undefined or thread), WERROR=1, JOBS, DESTDIR, PREFIX.

CC      ?= gcc
BUILD   ?= build
OPT     ?= -O2 -g
PREFIX  ?= /usr/local
ifeq ($(origin CC),default)
CC := gcc
endif

PKGS    := jansson libpcre2-8 libutf8proc libjpeg libpng libwebp libwebpdemux libmd zlib
# Asked on first use, not when this file is read: `make check` may have to install pkg-config first.
once = $(eval $1 := $$(shell $2))$($1)
PKG_CFLAGS = $(call once,PKG_CFLAGS,pkg-config --cflags $(PKGS))
PKG_LIBS   = $(call once,PKG_LIBS,pkg-config --libs $(PKGS))
EDIT_LIBS  = $(call once,EDIT_LIBS,pkg-config --libs libedit)
VERSION := $(shell sed -n 's/^.define VERSION "\(.*\)"/\1/p' src/engine/engine.c)
ABI     := $(shell sed -n 's/^.define SIB_ABI_VERSION //p' include/sibyl/sibyl.h)
JOBS    ?= $(shell nproc)
jobs    = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS)) # unless the caller said -j

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith
# Folders whose bytes come from outside are compiled with conversion warnings too.
STRICT  := -Wconversion -Wno-sign-conversion
ifdef WERROR
WARN += -Werror
endif
HARDEN  := -fstack-protector-strong -fstack-clash-protection -fPIC
ifndef SAN
HARDEN += -D_FORTIFY_SOURCE=2
else
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDSAN  := -fsanitize=$(SAN)
endif
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE $(OPT) $(WARN) -ffp-contract=off -fvisibility=hidden $(HARDEN) -Iinclude -Isrc $(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL = $(LDSAN) -Wl,-z,relro,-z,now,-z,noexecstack $(LDFLAGS)
LIBS    = $(PKG_LIBS) -lm -lpthread

# Flags for one instruction set level, by file name.
ISA_avx2       := -mavx2 -mfma -mf16c
ISA_avx512     := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni -mavx512bf16 -mavx512vbmi
ISA_amx        := $(ISA_avx512vnni) -mamx-tile -mamx-int8 -mamx-bf16

LIB_SRC  := $(filter-out src/cli/%,$(wildcard src/*/*.c src/*/*/*.c))
ifneq ($(shell uname -m),x86_64)
LIB_SRC  := $(filter-out src/kernels/x86/%,$(LIB_SRC))
endif
CLI_SRC  := $(wildcard src/cli/*.c)
TOOL_SRC := $(wildcard tools/*.c)
GOLD_SRC := $(wildcard tools/golden/*.c)
TEST_SRC := $(wildcard tests/unit/*_test.c)
PROP_SRC := $(wildcard tests/property/*_test.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
KC_SRC   := $(wildcard tests/kcheck/*.c)
ifneq ($(shell uname -m),x86_64)
KC_SRC   := $(filter-out %_avx512vnni.c,$(KC_SRC))
endif

LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
GOLD_OBJ := $(GOLD_SRC:%.c=$(BUILD)/%.o)
KC_OBJ   := $(KC_SRC:%.c=$(BUILD)/%.o)
# What tests/failure makes fail.
FAILING  := malloc calloc realloc aligned_alloc strdup free mmap open close read pread fopen fdopen fclose fwrite opendir closedir pthread_create
TOOLS    := $(TOOL_SRC:tools/%.c=$(BUILD)/%)
TESTS    := $(TEST_SRC:tests/unit/%.c=$(BUILD)/tests/%)
PROPS    := $(PROP_SRC:tests/property/%.c=$(BUILD)/property/%)
FUZZERS  := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)
PROGRAMS := $(if $(CLI_SRC),$(BUILD)/sibyl) $(TOOLS) $(if $(KC_SRC),$(BUILD)/kcheck) $(if $(GOLD_SRC),$(BUILD)/golden)
CHECKED  := $(BUILD)/failure # built for `make check` only

.PHONY: all lib tests props fuzzers help demo check check-long property bench kcheck asan ubsan tsan fuzz lint abi examples install uninstall format clean
.DEFAULT_GOAL := all

all: lib $(PROGRAMS) ## the program, the libraries and the tools
lib: $(BUILD)/libsibyl.a $(BUILD)/libsibyl.so ## libsibyl.a and libsibyl.so
tests: $(TESTS)
props: $(PROPS)
fuzzers: $(FUZZERS)
tests props fuzzers: ; @:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## install what is missing, build, answer some questions with the demo checkpoints
	@scripts/deps.sh build
	@$(MAKE) --no-print-directory $(jobs) all
	@BUILD=$(BUILD) scripts/demo.sh

check: ## install what is missing, build, run every short test; the last line is the tally
	@scripts/deps.sh check
	@$(MAKE) --no-print-directory $(jobs) all tests props examples $(CHECKED)
	@BUILD=$(BUILD) CC="$(CC)" SAN="$(SAN)" JOBS=$(JOBS) scripts/check.sh

check-long: ## check, then clang, sanitizers, long properties and fuzzers (about an hour)
	@scripts/long.sh check clang sanitize thread property fuzz

property: tests props ## the promises (same bytes, same distribution) over longer runs
	@BUILD=$(BUILD) SIBYL_LONG=1 TEST_SECONDS=1800 scripts/check.sh property

kcheck: $(BUILD)/kcheck ## every kernel of every instruction set level against the scalar one
	$(BUILD)/kcheck

bench: all ## speed of the demo checkpoint; see docs/SPEED.md for real shapes
	$(BUILD)/sibyl bench

asan: ## unit tests with the address sanitizer
	@SAN=address scripts/long.sh sanitize
ubsan: ## unit tests with the undefined behaviour sanitizer
	@SAN=undefined scripts/long.sh sanitize
tsan: ## unit tests with the thread sanitizer
	@scripts/long.sh thread
fuzz: ## every fuzzer for FUZZ_SECONDS (default 60) seconds; needs clang
	@scripts/long.sh fuzz

lint: ## cppcheck and clang-tidy with the rules of .clang-tidy; skipped where they are not installed
	@scripts/lint.sh
abi: ## writes include/sibyl/abi.txt anew after an intended change of the interface (and of SIB_ABI_VERSION)
	@CC="$(CC)" scripts/abi.sh --update
examples: $(BUILD)/examples/generate $(BUILD)/examples/chat ## examples/*.c

LIBDIR     ?= $(PREFIX)/lib
BINDIR     ?= $(PREFIX)/bin
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
INSTALLED   = $(LIBDIR)/libsibyl.a $(LIBDIR)/libsibyl.so $(LIBDIR)/libsibyl.so.$(ABI) $(LIBDIR)/pkgconfig/sibyl.pc \
              $(INCLUDEDIR)/sibyl $(BINDIR)/sibyl $(DATADIR)/man/man1/sibyl.1 $(DATADIR)/doc/sibyl $(DATADIR)/sibyl

install: all ## into DESTDIR and PREFIX: program, libraries, header, pkg-config file, man page, demo checkpoint
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR)/sibyl $(DATADIR)/man/man1 $(DATADIR)/doc/sibyl $(DATADIR)/sibyl/demo/gemma4-demo)
	install -m 644 $(BUILD)/libsibyl.a $(DESTDIR)$(LIBDIR)/
	install -m 755 $(BUILD)/libsibyl.so $(DESTDIR)$(LIBDIR)/libsibyl.so.$(ABI)
	ln -sf libsibyl.so.$(ABI) $(DESTDIR)$(LIBDIR)/libsibyl.so
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|; s|@PKGS@|$(PKGS)|' \
	    packaging/sibyl.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/sibyl.pc
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/sibyl.pc
	install -m 644 include/sibyl/sibyl.h $(DESTDIR)$(INCLUDEDIR)/sibyl/
	$(if $(CLI_SRC),install -m 755 $(BUILD)/sibyl $(DESTDIR)$(BINDIR)/)
	install -m 644 docs/man/sibyl.1 $(DESTDIR)$(DATADIR)/man/man1/
	install -m 644 LICENSE NOTICE $(DESTDIR)$(DATADIR)/doc/sibyl/
	install -m 644 demo/gemma4-demo/* $(DESTDIR)$(DATADIR)/sibyl/demo/gemma4-demo/

uninstall: ## removes what install put there
	rm -rf $(addprefix $(DESTDIR),$(INSTALLED))

format: ## clang-format over the tracked C files
	git ls-files '*.c' '*.h' | xargs clang-format -i

$(BUILD)/libsibyl.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/libsibyl.so: $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,libsibyl.so.$(ABI) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
	@ln -sf libsibyl.so $@.$(ABI)
$(BUILD)/sibyl: $(CLI_OBJ) $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS) $(EDIT_LIBS)
$(TOOLS): $(BUILD)/%: $(BUILD)/tools/%.o $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/golden: $(GOLD_OBJ) $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/kcheck: $(KC_OBJ) $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/failure: $(BUILD)/tests/failure/failure.o $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) $(FAILING:%=-Wl,--wrap=%) -o $@ $^ $(LIBS)
$(TESTS): $(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/libsibyl.a
	@mkdir -p $(@D)
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(LIBS)
# The targets of the fuzzers as functions of one test.
FUZZ_OBJ = $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz-targets/%.o)
$(FUZZ_OBJ): $(BUILD)/fuzz-targets/%.o: tests/fuzz/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(SANFLAGS) -Wno-missing-prototypes -DLLVMFuzzerTestOneInput=$* -MMD -MP -c -o $@ $<
$(BUILD)/tests/fuzz_regressions_test: $(FUZZ_OBJ)
$(BUILD)/examples/%: examples/%.c $(BUILD)/libsibyl.a
	@mkdir -p $(@D)
	$(CC) -std=c17 -Wall -Wextra -Wpedantic $(OPT) $(if $(SAN),-fsanitize=$(SAN)) -Iinclude -pie -fPIE $(LDFLAGS_ALL) -o $@ $< $(BUILD)/libsibyl.a $(LIBS)
$(PROPS): $(BUILD)/property/%: $(BUILD)/tests/property/%.o $(BUILD)/libsibyl.a
	@mkdir -p $(@D)
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ -lcmocka $(LIBS)
$(FUZZERS): $(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/libsibyl.a
	@mkdir -p $(@D)
	$(CC) -pie -fsanitize=fuzzer $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

# One rule compiles everything; the file name decides the extra flags.
isa_of = $(if $(findstring _amx,$1),$(ISA_amx),$(if $(findstring _avx512vnni,$1),$(ISA_avx512vnni),$(if $(findstring _avx512,$1),$(ISA_avx512),$(if $(findstring _avx2,$1),$(ISA_avx2)))))
# Instrumented kernel templates take minutes at -O3.
kernel_of = $(if $(findstring src/kernels/,$1),$(if $(SAN),-O1,-O3))
strict_of = $(if $(filter src/artifacts/% src/text/% src/image/% src/server/%,$1),$(STRICT))
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(SANFLAGS) $(call kernel_of,$<) $(call isa_of,$<) $(call strict_of,$<) -MMD -MP -c -o $@ $<

$(BUILD)/src/server/page.o: src/server/page.html

clean: ## removes every output folder
	rm -rf build build-* $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
