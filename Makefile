# Sibyl. `make help` lists the targets; `make demo` and `make check` work as the first command.
# Variables: CC, BUILD (output folder), SAN (address,undefined or thread), WERROR=1, V=1.

CC      ?= gcc
BUILD   ?= build
OPT     ?= -O2 -g
PREFIX  ?= /usr/local
ifeq ($(origin CC),default)
CC := gcc
endif

PKGS    := jansson libpcre2-8 libutf8proc libjpeg libpng libwebp libwebpdemux libmd zlib
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   = $(shell pkg-config --libs $(PKGS) 2>/dev/null)
EDIT_LIBS  = $(shell pkg-config --libs libedit 2>/dev/null)

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith
# Folders whose bytes come from outside are compiled with conversion warnings too.
STRICT  := -Wconversion -Wno-sign-conversion
ifdef WERROR
WARN += -Werror
endif
HARDEN  := -fstack-protector-strong -fPIC
ifndef SAN
HARDEN += -D_FORTIFY_SOURCE=2
else
HARDEN += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDSAN  := -fsanitize=$(SAN)
endif
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE $(OPT) $(WARN) -ffp-contract=off -fvisibility=hidden $(HARDEN) -Iinclude -Isrc $(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL = $(LDSAN) -Wl,-z,relro,-z,now $(LDFLAGS)
LIBS    = $(PKG_LIBS) -lm -lpthread

# Flags for one instruction set level, by file name.
ISA_avx2       := -mavx2 -mfma -mf16c
ISA_avx512     := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni -mavx512bf16 -mavx512vbmi

LIB_SRC  := $(filter-out src/cli/%,$(wildcard src/*/*.c src/*/*/*.c))
ifneq ($(shell uname -m),x86_64)
LIB_SRC  := $(filter-out src/kernels/x86/%,$(LIB_SRC))
endif
CLI_SRC  := $(wildcard src/cli/*.c)
TOOL_SRC := $(wildcard tools/*.c)
TEST_SRC := $(wildcard tests/unit/*_test.c)
KC_SRC   := $(wildcard tests/kcheck/*.c)

LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
KC_OBJ   := $(KC_SRC:%.c=$(BUILD)/%.o)
TOOLS    := $(TOOL_SRC:tools/%.c=$(BUILD)/%)
TESTS    := $(TEST_SRC:tests/unit/%.c=$(BUILD)/tests/%)
PROGRAMS := $(if $(CLI_SRC),$(BUILD)/sibyl) $(TOOLS) $(if $(KC_SRC),$(BUILD)/kcheck)

.PHONY: all lib tests clean help
all: lib $(PROGRAMS)
lib: $(BUILD)/libsibyl.a $(BUILD)/libsibyl.so
tests: $(TESTS)

$(BUILD)/libsibyl.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/libsibyl.so: $(LIB_OBJ)
	$(CC) -shared -Wl,-soname,libsibyl.so $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/sibyl: $(CLI_OBJ) $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS) $(EDIT_LIBS)
$(TOOLS): $(BUILD)/%: $(BUILD)/tools/%.o $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(BUILD)/kcheck: $(KC_OBJ) $(BUILD)/libsibyl.a
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(LIBS)
$(TESTS): $(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/libsibyl.a
	@mkdir -p $(@D)
	$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ -lcmocka $(LIBS)

# One rule compiles everything; the file name decides the extra flags.
isa_of = $(if $(findstring _avx512vnni,$1),$(ISA_avx512vnni),$(if $(findstring _avx512,$1),$(ISA_avx512),$(if $(findstring _avx2,$1),$(ISA_avx2))))
kernel_of = $(if $(findstring src/kernels/,$1),-O3)
strict_of = $(if $(filter src/artifacts/% src/text/% src/image/% src/server/%,$1),$(STRICT))
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(call kernel_of,$<) $(call isa_of,$<) $(call strict_of,$<) -MMD -MP -c -o $@ $<

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
