# ocrfs. `make help` lists the targets. Every variable set with ?= may be given
# on the command line or, for good, in config.mk (not in git).
-include config.mk
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += -r

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1)
PREFIX  ?= /usr/local
CC      ?= cc
NVCC    ?= $(shell command -v nvcc)
# CUDA=0 builds without the GPU plugin.
CUDA    ?= $(if $(NVCC),1,0)
# SAN=address,undefined or SAN=thread; WERROR=1 (CI); V=1 shows the commands.
SAN     ?=
WERROR  ?= 0
Q       := $(if $(filter 1,$V),,@)
yes      = $(filter 1,$(1))
comma   := ,
have     = $(shell pkg-config --exists $(1) 2>/dev/null && echo 1)
pkg      = $(shell pkg-config $(1) 2>/dev/null)

# One folder per variant: switching sanitizers never needs `make clean`.
OUT := build/$(or $(and $(SAN),san-$(subst $(comma),-,$(SAN))),opt)

# CFLAGS and friends belong to the user and come last, so they always win.
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
           -Wwrite-strings -Wpointer-arith -Wcast-qual -Wformat=2 -Wundef \
           -Wvla -Wold-style-definition -Wredundant-decls
HARDEN  := -fstack-protector-strong -fstack-clash-protection \
           -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
MODE    := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
XXHASH  := $(call have,libxxhash)
ALL_CPP := -I. -D_GNU_SOURCE -DOCR_VERSION='"$(VERSION)"' \
           -DHAVE_XXHASH=$(or $(XXHASH),0) $(CPPFLAGS)
ALL_C   := -std=c11 -pthread -fPIC $(WARN) $(and $(call yes,$(WERROR)),-Werror) \
           $(or $(MODE),$(HARDEN)) $(CFLAGS)
ALL_LD  := -pthread -pie $(or $(MODE),-Wl$(comma)-z$(comma)relro$(comma)-z$(comma)now) $(LDFLAGS)
ALL_SO  := -pthread -shared $(or $(MODE),-Wl$(comma)-z$(comma)relro$(comma)-z$(comma)now) $(LDFLAGS)

obj      = $(patsubst %,$(OUT)/%.o,$(1))
BASE    := $(wildcard engine/base/*.c)
SHARED  := $(BASE) $(wildcard engine/*.c)
CLIENT  := $(SHARED) $(wildcard engine/client/*.c) $(wildcard cache/*.c)
SERVER  := $(SHARED) $(wildcard engine/image/*.c engine/finish/*.c engine/server/*.c)
PLUGIN  := $(BASE) $(wildcard engine/tesseract/*.c)
FS      := $(wildcard fs/*.c)
UNIT    := $(patsubst %.c,$(OUT)/%,$(wildcard tests/unit/test_*.c))
TOOLS   := $(patsubst %.c,$(OUT)/%,$(wildcard tests/tools/*.c))
# Everything but the two main()s, for the unit tests.
TESTED  := $(sort $(filter-out fs/main.c engine/server/main.c, \
             $(CLIENT) $(SERVER) $(FS) $(wildcard engine/tesseract/*.c)))

XXH_LIBS  := $(if $(XXHASH),$(call pkg,--libs libxxhash))
IMG_LIBS  := -lpng -ljpeg -lz
FS_PKGS   := fuse3 sqlite3 jansson libxxhash
TESS_PKGS := tesseract lept

all: engine $(OUT)/ocrfs $(if $(call have,$(TESS_PKGS)),$(OUT)/ocrfs-tesseract.so,no-tesseract) ## build everything
engine: $(OUT)/ocrfs-engine ## build the engine alone: needs a compiler, libpng, libjpeg

# Fails early and by name when a library is missing.
need-%:
	@pkg-config --exists '$*' || { echo "missing library: $* (run 'make deps')" >&2; exit 1; }
no-tesseract:
	@echo "  note: no libtesseract found, building without it (run 'make deps')"

$(OUT)/ocrfs: $(call obj,$(FS) $(CLIENT)) | $(addprefix need-,$(FS_PKGS))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(call pkg,--libs $(FS_PKGS)) -lm $(LDLIBS) -o $@
$(OUT)/ocrfs-engine: $(call obj,$(SERVER))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(IMG_LIBS) $(XXH_LIBS) -ldl -lm $(LDLIBS) -o $@
$(OUT)/ocrfs-tesseract.so: $(call obj,$(PLUGIN))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) $^ $(call pkg,--libs $(TESS_PKGS)) -lm $(LDLIBS) -o $@
$(UNIT): $(OUT)/%: $(OUT)/%.c.o $(call obj,$(TESTED))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(call pkg,--libs cmocka $(FS_PKGS) $(TESS_PKGS)) $(IMG_LIBS) -ldl -lm -o $@
$(TOOLS): $(OUT)/%: $(OUT)/%.c.o
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(call pkg,--libs fuse3) -lm -o $@

$(OUT)/fs/%.c.o $(OUT)/tests/%.c.o: CPP_PKGS = $(call pkg,--cflags fuse3)
$(OUT)/engine/tesseract/%.c.o: CPP_PKGS = $(call pkg,--cflags $(TESS_PKGS))
$(OUT)/%.c.o: %.c $(OUT)/flags
	@mkdir -p $(@D) && echo "  CC    $<"
	$Q$(CC) $(ALL_CPP) $(CPP_PKGS) $(ALL_C) -MMD -MP -c $< -o $@

# Touched only when a flag changed; every object depends on it.
FLAGS = $(subst ','\'',$(CC) $(ALL_CPP) $(ALL_C))
$(OUT)/flags: FORCE
	@mkdir -p $(@D) && { echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@; }

unit: $(UNIT) ## build and run the unit tests; T=cache runs only test_cache*
	$Qprove $(filter $(OUT)/tests/unit/test_$T%,$(UNIT))
clean: ## remove build/
	$(RM) -r build
help: ## show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/\1\t\2/p' Makefile | expand -t12

.PHONY: all engine unit clean help no-tesseract FORCE
.SECONDARY:
-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
