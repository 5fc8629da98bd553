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
# CUDA=0 builds without the GPU plugin. CUDA_ARCHS: the GPUs it gets code for;
# others make their own from compute_80 (CUDA_PTX) when they load it. One is
# enough for oneself (90a: H100, H200).
CUDA    ?= $(if $(NVCC),1,0)
CUDA_ARCHS ?= 75 80 86 89 90a 100 120
CUDA_PTX   ?= 80
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
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
# What reading model folders needs; without it the engine has no `lighton`.
MODEL_PKGS := jansson libxxhash libutf8proc
MODEL   := $(call have,$(MODEL_PKGS))
# Without it decode helpers have no filter of system calls.
SECCOMP := $(call have,libseccomp)
HTTP_PKGS := libcurl jansson libpng
# Plugins for formats beyond PNG and JPEG, each with a library of its own: those
# whose library is there. giflib has no file for pkg-config.
FORMAT_PKGS_tiff := libtiff-4
FORMAT_PKGS_webp := libwebp libwebpdemux
FORMAT_PKGS_bmp  := lept
FORMAT_PKGS_heif := libheif
FORMAT_PKGS_pdf  := poppler-glib cairo
GIF_H   := $(wildcard /usr/include/gif_lib.h /usr/local/include/gif_lib.h)
FORMATS := $(foreach f,tiff webp bmp heif pdf,$(if $(wildcard engine/formats/$f.c),$(if \
    $(call have,$(FORMAT_PKGS_$f)),$f))) $(if $(GIF_H),gif)
FORMAT_CPP := $(FORMATS:%=-DHAVE_FORMAT_%)
FORMAT_PKGS := $(foreach f,$(FORMATS),$(FORMAT_PKGS_$f))
ALL_CPP := -I. -D_GNU_SOURCE -DHAVE_XXHASH=$(or $(XXHASH),0) \
           -DHAVE_MODEL=$(or $(MODEL),0) -DHAVE_SECCOMP=$(or $(SECCOMP),0) $(CPPFLAGS)
ALL_C   := -std=c11 -pthread -fPIC $(WARN) $(and $(call yes,$(WERROR)),-Werror) \
           $(or $(MODE),$(HARDEN)) $(CFLAGS)
ALL_LD  := -pthread -pie $(or $(MODE),-Wl$(comma)-z$(comma)relro$(comma)-z$(comma)now) $(LDFLAGS)
ALL_SO  := -pthread -shared $(or $(MODE),-Wl$(comma)-z$(comma)relro$(comma)-z$(comma)now) $(LDFLAGS)

SOURCES := $(wildcard fs cache engine kernels)
obj      = $(patsubst %,$(OUT)/%.o,$(1))
BASE    := $(wildcard engine/base/*.c)
SHARED  := $(BASE) $(wildcard engine/*.c)
CLIENT  := $(SHARED) $(wildcard engine/client/*.c) $(wildcard cache/*.c)
KERNELS := $(wildcard kernels/*.c kernels/cpu/*.c)
SERVER  := $(SHARED) $(wildcard engine/image/*.c engine/finish/*.c engine/gpu/*.c engine/server/*.c) \
           $(if $(MODEL),$(wildcard engine/model/*.c engine/lighton/*.c)) $(KERNELS)
FORMAT_BASE := $(BASE) engine/image/canvas.c engine/image/exif.c
FORMAT_SO := $(FORMATS:%=$(OUT)/ocrfs-%.so)
PLUGIN  := $(BASE) $(wildcard engine/tesseract/*.c)
HTTP    := $(BASE) $(wildcard engine/http/*.c) engine/image/encode.c engine/image/resize.c \
           engine/finish/repeat.c
FS      := $(wildcard fs/*.c)
GPU     := $(if $(and $(call yes,$(CUDA)),$(if $(SAN),,1)),$(BASE) $(wildcard kernels/*.c kernels/cuda/*.c kernels/cuda/*.cu))
UNIT    := $(patsubst %.c,$(OUT)/%,$(filter-out $(if $(call have,$(HTTP_PKGS)),,%/test_http.c),$(wildcard tests/unit/test_*.c)))
TOOLS   := $(patsubst %.c,$(OUT)/%,$(filter-out $(if $(call have,$(HTTP_PKGS)),,%/ocr-encode.c),$(wildcard tests/tools/*.c)))
MOUNT   := $(wildcard tests/mount/test_*.py)
# What tests load before the other libraries; sanitizers want to be first.
PRELOAD := $(if $(SAN),,$(patsubst %.c,$(OUT)/%.so,$(wildcard tests/preload/*.c)))
# Objects that name the version: only these are built again at each commit.
VERSIONED := $(call obj,$(shell grep -rlw OCR_VERSION --include='*.c' $(SOURCES)))
# Everything but the two main()s, for the unit tests.
TESTED  := $(sort $(filter-out fs/main.c engine/server/main.c, \
             $(CLIENT) $(SERVER) $(FS) $(wildcard engine/tesseract/*.c) $(FORMATS:%=engine/formats/%.c) kernels/cuda/plan.c \
             $(if $(call have,$(HTTP_PKGS)),$(filter-out %/plugin.c,$(HTTP)))))

XXH_LIBS  := $(if $(XXHASH),$(call pkg,--libs libxxhash))
MODEL_LIBS := $(if $(MODEL),$(call pkg,--libs $(MODEL_PKGS)))
SECCOMP_LIBS := $(if $(SECCOMP),$(call pkg,--libs libseccomp))
IMG_LIBS  := -lpng -ljpeg -lz
FORMAT_LIBS = $(call pkg,--libs $(FORMAT_PKGS)) $(if $(GIF_H),-lgif)
FS_PKGS   := fuse3 sqlite3 jansson libxxhash
TESS_PKGS := tesseract lept

all: engine $(OUT)/ocrfs $(if $(call have,$(TESS_PKGS)),$(OUT)/ocrfs-tesseract.so,no-tesseract) \
    $(if $(call have,$(HTTP_PKGS)),$(OUT)/ocrfs-http.so,no-http) \
    $(FORMAT_SO) $(if $(GPU),$(OUT)/ocrfs-cuda.so) ## build everything
engine: $(OUT)/ocrfs-engine ## build the engine alone: needs a compiler, libpng, libjpeg

# Fails early and by name when a library is missing.
need-%:
	@pkg-config --exists '$*' 2>/dev/null || { echo "missing library: $* (run 'make deps')" >&2; exit 1; }
no-tesseract:
	@echo "  note: no libtesseract found, building without it (run 'make deps')"
no-http:
	@echo "  note: no libcurl found, building without the recogniser http (run 'make deps')"

$(call obj,$(FS) $(wildcard cache/*.c)): | $(addprefix need-,$(FS_PKGS))
$(OUT)/ocrfs: $(call obj,$(FS) $(CLIENT))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(call pkg,--libs $(FS_PKGS)) -lm $(LDLIBS) -o $@
$(OUT)/ocrfs-engine: $(call obj,$(SERVER))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(IMG_LIBS) $(XXH_LIBS) $(MODEL_LIBS) $(SECCOMP_LIBS) -ldl -lm $(LDLIBS) -o $@
$(OUT)/ocrfs-tesseract.so: $(call obj,$(PLUGIN))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) $^ $(call pkg,--libs $(TESS_PKGS)) -lm $(LDLIBS) -o $@
$(FORMAT_SO): $(OUT)/ocrfs-%.so: $(OUT)/engine/formats/%.c.o $(call obj,$(FORMAT_BASE))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) $^ $(if $(FORMAT_PKGS_$*),$(call pkg,--libs $(FORMAT_PKGS_$*)),-l$*) -lm $(LDLIBS) -o $@
$(OUT)/ocrfs-http.so: $(call obj,$(HTTP))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) $^ $(call pkg,--libs $(HTTP_PKGS)) -lz -lm $(LDLIBS) -o $@
# Its only symbol is the one that is looked up; nothing of CUDA is needed to
# load it.
$(OUT)/ocrfs-cuda.so: $(call obj,$(GPU))
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) -Wl,-z,defs -Wl,--version-script=kernels/cuda/exports.map $^ $(CUDA_HOME)/lib64/libcudart_static.a \
	    -ldl -lrt -lm $(LDLIBS) -o $@
# An archive, so that a test links only what it needs.
$(OUT)/tested.a: $(call obj,$(TESTED))
	$Q$(RM) $@ && $(AR) rcs $@ $^
$(UNIT): $(OUT)/%: $(OUT)/%.c.o $(OUT)/tested.a
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $(filter %.o,$^) $(filter %.a,$^) $(call pkg,--libs cmocka $(FS_PKGS) $(TESS_PKGS) $(MODEL_PKGS)) $(IMG_LIBS) $(FORMAT_LIBS) $(SECCOMP_LIBS) \
	    $(call pkg,--libs libcurl) -ldl -lm -o $@
# A GPU that is played, as the engine would find one: tests/plugin/played.h.
PLAYED := $(OUT)/tests/plugin/ocrfs-cuda.so $(OUT)/tests/plugin/libcuda.so.1
$(OUT)/tests/plugin/ocrfs-cuda.so: $(call obj,tests/plugin/played.c kernels/cuda/plan.c $(KERNELS) $(BASE))
$(OUT)/tests/plugin/libcuda.so.1: $(call obj,tests/plugin/driver.c)
$(PLAYED):
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) $^ -ldl -lm $(LDLIBS) -o $@
$(OUT)/tests/unit/test_serving: $(call obj,tests/plugin/played.c)
$(TOOLS): $(OUT)/%: $(OUT)/%.c.o
	@echo "  LD    $@"
	$Q$(CC) $(ALL_LD) $^ $(call pkg,--libs fuse3) $(TOOL_LIBS) -lm -o $@
$(OUT)/tests/tools/ocr-cat: $(call obj,$(BASE) $(wildcard engine/image/*.c engine/finish/*.c))
$(OUT)/tests/tools/ocr-cat: TOOL_LIBS = $(IMG_LIBS) -ldl
$(OUT)/tests/tools/ocr-model: $(call obj,$(BASE) $(wildcard engine/image/*.c engine/model/*.c) $(KERNELS))
$(OUT)/tests/tools/ocr-encode: $(call obj,$(BASE) $(wildcard engine/image/*.c) engine/http/body.c engine/http/base64.c)
$(OUT)/tests/tools/ocr-encode: TOOL_LIBS = $(IMG_LIBS) $(call pkg,--libs jansson) -ldl
$(OUT)/tests/tools/ocr-bench: $(call obj,$(filter-out engine/server/main.c engine/gpu/system.c,$(SERVER)))
$(OUT)/tests/tools/ocr-bench: TOOL_LIBS = $(IMG_LIBS) $(XXH_LIBS) $(MODEL_LIBS) $(SECCOMP_LIBS) -ldl
$(OUT)/tests/tools/ocr-rates: $(call obj,$(BASE) $(KERNELS))
$(OUT)/tests/tools/ocr-model: TOOL_LIBS = $(IMG_LIBS) $(call pkg,--libs $(MODEL_PKGS))

$(PRELOAD): $(OUT)/%.so: $(OUT)/%.c.o
	@echo "  LD    $@"
	$Q$(CC) $(ALL_SO) $^ -ldl -o $@

$(OUT)/fs/%.c.o: CPP_PKGS = $(call pkg,--cflags fuse3)
$(OUT)/tests/%.c.o: CPP_PKGS = $(FORMAT_CPP) $(call pkg,--cflags fuse3 $(FORMAT_PKGS))
# Bits must not depend on what a compiler makes of a * b + c.
$(OUT)/kernels/%.c.o: CPP_PKGS = -ffp-contract=off
$(OUT)/kernels/cuda/%.c.o: CPP_PKGS = -ffp-contract=off -fvisibility=hidden \
    -isystem $(CUDA_HOME)/include
$(OUT)/engine/formats/%.c.o: CPP_PKGS = $(call pkg,--cflags $(FORMAT_PKGS_$(notdir $*)))
$(OUT)/engine/tesseract/%.c.o: CPP_PKGS = $(call pkg,--cflags $(TESS_PKGS))
$(VERSIONED): CPP_VERSION = -DOCR_VERSION='"$(VERSION)"'
$(VERSIONED): $(OUT)/version
$(OUT)/%.c.o: %.c $(OUT)/flags
	@mkdir -p $(@D) && echo "  CC    $<"
	$Q$(CC) $(ALL_CPP) $(CPP_VERSION) $(CPP_PKGS) $(ALL_C) -MMD -MP -c $< -o $@

# 90a has instructions of its own and needs the long spelling.
NVCC_FLAGS = -O3 -std=c++17 -I. --compress-mode=size \
    $(foreach a,$(CUDA_ARCHS),-gencode=arch=compute_$a,code=sm_$a) -gencode=arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX) $(NVCC_DEFINES) \
    -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra
# Not among the flags that a change of builds everything again: it takes minutes.
NVCC_WARN = $(and $(call yes,$(WERROR)),-Werror all-warnings -Xcompiler -Werror)
$(OUT)/%.cu.o: %.cu $(OUT)/nvcc-flags
	@mkdir -p $(@D) && echo "  NVCC  $<"
	$Q$(NVCC) $(NVCC_FLAGS) $(NVCC_WARN) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(OUT)/nvcc-flags: FORCE
	@mkdir -p $(@D) && { echo '$(NVCC) $(NVCC_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS)' > $@; }

# Touched only when their content changes: every object depends on the flags,
# and those that name the version on it.
FLAGS = $(subst ','\'',$(CC) $(ALL_CPP) $(ALL_C))
$(OUT)/flags: FORCE
	@mkdir -p $(@D) && { echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@; }
$(OUT)/version: FORCE
	@mkdir -p $(@D) && { echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' > $@; }

demo: deps ## install what is needed, build, and show it on sample scans
	@$(MAKE) --no-print-directory all
	@BUILD=$(OUT) tests/demo.sh

PROVE := BUILD=$(abspath $(OUT)) prove
unit: $(UNIT) ## build and run the unit tests; T=cache runs only test_cache*
	$Q$(PROVE) $(filter $(OUT)/tests/unit/test_$T%,$(UNIT))
# Mount tests mostly wait, so more of them run at once than there are cores;
# first those that take longest.
JOBS ?= 4
LONGEST := tests/mount/test_users.py tests/mount/test_programs.py
check: all man $(UNIT) $(TOOLS) $(PLAYED) $(PRELOAD) ## run all tests, unit and mount; T=names only test_names*
	$Q$(PROVE) -j$(JOBS) $(filter $(OUT)/tests/unit/test_$T% tests/mount/test_$T%, \
	    $(LONGEST) $(filter-out $(LONGEST),$(MOUNT) $(UNIT)))
asan: ## run the unit tests under address and undefined-behaviour sanitizers
	$Q$(MAKE) unit SAN=address,undefined
tsan: ## run the unit tests under the thread sanitizer
	$Qsetarch -R $(MAKE) unit SAN=thread
# What they find stays in $(FUZZ)/NAME/bad-* and is a file to keep in
# tests/fuzz/seeds/NAME once it is understood; what is new stays beside it.
FUZZ := build/fuzz
S ?= 10
FUZZ_NAMES := png jpeg $(filter-out pdf heif,$(FORMATS)) exif server client finish html options safetensors config tokenizer
FUZZED := $(filter-out kernels/cuda/% kernels/cpu/% engine/tesseract/% engine/lighton/% engine/gpu/% fs/% cache/%, \
            $(TESTED)) fs/options.c fs/words.c
fuzz: $(patsubst %,fuzz-%,$(or $(filter $T,$(FUZZ_NAMES)),$(FUZZ_NAMES))) ## feed what reads hostile bytes with random ones; T=png S=60: one target, 60 s
fuzz-png fuzz-jpeg $(FORMATS:%=fuzz-%): FUZZ_MORE = tests/data/formats
fuzz-%: $(FUZZ)/fuzz-%
	$Qmkdir -p $(FUZZ)/$*
	$Qlog=$(FUZZ)/$*.log; $< -max_total_time=$S -max_len=32768 -timeout=20 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ)/$*/bad- $(FUZZ)/$* $(wildcard tests/fuzz/seeds/$*) $(FUZZ_MORE) >$$log 2>&1 || \
	    { tail -n 60 $$log; exit 1; }; \
	    echo "  fuzz $*: $$(sed -n 's/stat::number_of_executed_units: //p' $$log) inputs in $S s, nothing found"
# Clang's, whatever the rest is built with.
$(FUZZ)/fuzz-%: tests/fuzz/driver.c $(wildcard tests/fuzz/*.h) $(FUZZ)/obj/fuzzed.a
	@echo "  FUZZ  $@"
	$Qclang $(ALL_CPP) $(FORMAT_CPP) -DTARGET=fuzz_$* -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined \
	    -fno-sanitize-recover=undefined $< $(FUZZ)/obj/fuzzed.a $(IMG_LIBS) $(FORMAT_LIBS) $(MODEL_LIBS) $(XXH_LIBS) $(SECCOMP_LIBS) \
	    -pthread -ldl -lm -o $@
ifneq ($(OUT),$(FUZZ)/obj)
$(FUZZ)/obj/fuzzed.a: FORCE
	$Q$(MAKE) --no-print-directory $@ OUT=$(FUZZ)/obj CC=clang SAN=fuzzer-no-link,address,undefined WERROR=0 \
	    CFLAGS='-O1 -g -fno-sanitize-recover=undefined'
else
$(OUT)/fuzzed.a: $(call obj,$(FUZZED))
	$Q$(RM) $@ && $(AR) rcs $@ $^
endif
# Needed only when the checkpoint or the model's description changes.
REFERENCE ?= build/reference/bin/python
build/reference/bin/python: tests/reference/requirements.txt
	python3 -m venv build/reference && build/reference/bin/pip install -q -r $< && touch $@
golden: $(REFERENCE) ## make tests/data/golden again, with transformers and float64
	$(REFERENCE) tests/reference/tokenizer.py
	$(REFERENCE) tests/reference/sampling.py
	$(REFERENCE) tests/reference/make_goldens.py
mutants: ## put faults into the forward pass, one by one: each must fail a test
	$Qpython3 tests/mutants.py
bench: all ## measure, against plain programs in the same run
	$QBUILD=$(OUT) tests/bench/run
	$Q$(MAKE) --no-print-directory bench-http
	$Q$(MAKE) --no-print-directory bench-model
bench-http: all $(OUT)/tests/tools/ocr-encode ## the part of bench that has pages read by a server
	$QBUILD=$(OUT) tests/bench/http
bench-model: $(OUT)/tests/tools/ocr-model $(OUT)/tests/tools/ocr-rates ## the part of bench that reads pages by a model
	$QBUILD=$(OUT) tests/bench/model

C_FILES = $(shell find $(SOURCES) tests -name '*.[ch]')
TIDIED = $(filter-out $(if $(GPU),,kernels/cuda/%) \
    $(filter-out $(FORMATS:%=engine/formats/%.c),$(wildcard engine/formats/*.c)),$(filter %.c,$(C_FILES)))
lint: ## check format and look for mistakes; every finding is an error
	$Qclang-format --dry-run -Werror $(C_FILES) $(wildcard kernels/cuda/*.cu kernels/cuda/*.cuh)
	$Qprintf '%s\n' $(TIDIED) | xargs -P2 -n1 sh -c 'clang-tidy --quiet "$$1" -- \
	    -std=c11 $(ALL_CPP) -DOCR_VERSION=\"\" -isystem $(CUDA_HOME)/include \
	    $(FORMAT_CPP) $(call pkg,--cflags fuse3 $(TESS_PKGS) $(FORMAT_PKGS))' tidy 2>/dev/null
	$Qshellcheck .ci/run tests/*.sh packaging/man/fill packaging/completions/ocrfs.bash \
	    packaging/debian/deb.sh packaging/debian/ocrfs.postrm
	$Q! command -v hadolint >/dev/null || hadolint packaging/container/Containerfile
	$Qpython3 -m compileall -q tests

# folder:folder or folder:header it may include; engine/base is for everybody.
ARROWS := fs:engine fs:engine/client fs:cache engine/client:engine \
    engine:engine/image/image.h engine/finish:engine/finish.h engine/finish:engine/protocol.h \
    engine/tesseract:engine/recogniser.h engine/tesseract:engine/image/image.h \
    engine/server:engine engine/server:engine/image/image.h engine/server:engine/image/decoder.h \
    engine/formats:engine/image \
    engine/lighton:engine engine/lighton:engine/image/resize.h engine/lighton:engine/model \
    engine/lighton:kernels engine/lighton:engine/gpu/gpu.h engine/model:kernels kernels/cpu:kernels \
    engine/gpu:kernels engine/server:engine/gpu/gpu.h engine/server:engine/model/model.h kernels/cuda:kernels \
    engine/http:engine/recogniser.h engine/http:engine/image/image.h engine/http:engine/image/resize.h \
    engine/http:engine/image/encode.h     engine/http:engine/finish.h engine/http:engine/protocol.h
# folder:prefix of system headers that are its own.
OWNERS := fs:fuse cache:sqlite3 engine/image:png engine/image:jpeglib engine/model:utf8proc \
    engine/formats:tiffio engine/formats:webp engine/formats:gif_lib engine/formats:libheif engine/formats:poppler \
    engine/formats:cairo engine/formats:leptonica engine/tesseract:tesseract engine/tesseract:leptonica kernels/cuda:cuda kernels/cuda:cublas \
    engine/http:curl
arrows: ## check who includes whom
	$Qgrep -rnoE --include='*.[ch]' --include='*.cu' --include='*.cuh' '^ *# *include [<"][^>"]+' $(SOURCES) | awk -F: \
	    -v arrows=' $(ARROWS) ' -v owners='$(OWNERS)' "$$ARROWS_AWK"
define ARROWS_AWK
function dir(p) { sub(/\/[^\/]*$$/, "", p); return p }
BEGIN { n = split(owners, o, /[ :]/) }
{   from = dir($$1); to = $$3; local = sub(/.*"/, "", to); sub(/.*</, "", to); bad = 0
    if (local)
        bad = dir(to) != "engine/base" && dir(to) != from && \
            !index(arrows, " " from ":" dir(to) " ") && !index(arrows, " " from ":" to " ")
    else {
        owned = mine = 0
        for (i = 1; i < n; i += 2)
            if (index(to, o[i + 1]) == 1) { owned = 1; mine = mine || from == o[i] }
        bad = owned && !mine }
    if (bad) { print "bad arrow: " $$1 ":" $$2 " includes " to; found = 1 } }
END { exit found }
endef
export ARROWS_AWK

# Debian and Ubuntu. dpkg is asked first: with everything there, neither root
# nor a network is needed.
DEPS := gcc libc6-dev pkg-config fuse3 libfuse3-dev libsqlite3-dev libjansson-dev \
    libxxhash-dev libutf8proc-dev libseccomp-dev libpng-dev libjpeg-dev zlib1g-dev libtesseract-dev libleptonica-dev \
    libtiff-dev libwebp-dev libgif-dev libheif-dev libpoppler-glib-dev \
    libcurl4-openssl-dev \
    $(addprefix tesseract-ocr-,osd eng deu fra spa ita nld por swe dan)
DEPS_CHECK := perl python3 libcmocka-dev clang libclang-rt-dev clang-format clang-tidy shellcheck \
    sqlite3 attr acl file git less vim-tiny zip unzip p7zip-full cpio rsync ripgrep \
    libarchive-tools busybox-static borgbackup restic tesseract-ocr \
    man-db mandoc zsh fish curl util-linux systemd debhelper dpkg-dev fakeroot lintian
deps: ## install what the build and the program need (Debian, Ubuntu)
	$(call packages,$(DEPS))
deps-check: ## and what the tests need
	$(call packages,$(DEPS) $(DEPS_CHECK))
ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
packages = @dpkg -s $(1) >/dev/null 2>&1 || { set -x; $(ROOT) apt-get update -q && \
    $(ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $(1); }

man: $(OUT)/man/ocrfs.1 ## make the manual page, with the options of this build
$(OUT)/man/ocrfs.1: packaging/man/ocrfs.1.in packaging/man/fill $(OUT)/ocrfs
	@mkdir -p $(@D) && echo "  MAN   $@"
	$Qpackaging/man/fill $(OUT)/ocrfs $< > $@

# Where shells look for completions; distributions may know better.
SHARE   := $(DESTDIR)$(PREFIX)/share
BASH_COMPLETIONS ?= $(SHARE)/bash-completion/completions
ZSH_COMPLETIONS  ?= $(SHARE)/zsh/site-functions
FISH_COMPLETIONS ?= $(SHARE)/fish/vendor_completions.d
SYSTEM_UNITS ?= $(DESTDIR)$(PREFIX)/lib/systemd/system
USER_UNITS   ?= $(DESTDIR)$(PREFIX)/lib/systemd/user
# A unit of packaging/systemd as the file $(2).
unit_to = install -d $(dir $(2)) && sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/systemd/$(1).in > $(2) && chmod 644 $(2)
install: all man ## install under $(DESTDIR)$(PREFIX)
	install -Dm755 $(OUT)/ocrfs $(DESTDIR)$(PREFIX)/bin/ocrfs
	install -Dm755 $(OUT)/ocrfs-engine $(DESTDIR)$(PREFIX)/libexec/ocrfs/ocrfs-engine
	test ! -e $(OUT)/ocrfs-tesseract.so || install -Dm755 $(OUT)/ocrfs-tesseract.so \
	    $(DESTDIR)$(PREFIX)/lib/ocrfs/ocrfs-tesseract.so
	for f in $(FORMATS); do install -Dm755 $(OUT)/ocrfs-$$f.so $(DESTDIR)$(PREFIX)/lib/ocrfs/ocrfs-$$f.so || exit 1; done
	test ! -e $(OUT)/ocrfs-http.so || install -Dm755 $(OUT)/ocrfs-http.so \
	    $(DESTDIR)$(PREFIX)/lib/ocrfs/ocrfs-http.so
	test ! -e $(OUT)/ocrfs-cuda.so || install -Dm755 $(OUT)/ocrfs-cuda.so \
	    $(DESTDIR)$(PREFIX)/lib/ocrfs/ocrfs-cuda.so
	install -Dm644 $(OUT)/man/ocrfs.1 $(SHARE)/man/man1/ocrfs.1
	install -Dm644 packaging/man/ocrfs-engine.8 $(SHARE)/man/man8/ocrfs-engine.8
	install -Dm644 packaging/completions/ocrfs.bash $(BASH_COMPLETIONS)/ocrfs
	install -Dm644 packaging/completions/ocrfs.zsh $(ZSH_COMPLETIONS)/_ocrfs
	install -Dm644 packaging/completions/ocrfs.fish $(FISH_COMPLETIONS)/ocrfs.fish
	install -Dm644 -t $(SHARE)/ocrfs/samples $(wildcard tests/data/samples/*.png tests/data/samples/*.jpg)
	$(call unit_to,ocrfs@.service,$(SYSTEM_UNITS)/ocrfs@.service)
	$(call unit_to,ocrfs-sleep.service,$(SYSTEM_UNITS)/ocrfs-sleep.service)
	$(call unit_to,ocrfs@.user.service,$(USER_UNITS)/ocrfs@.service)
uninstall: ## remove what install put there
	$(RM) $(DESTDIR)$(PREFIX)/bin/ocrfs $(SHARE)/man/man1/ocrfs.1 $(SHARE)/man/man8/ocrfs-engine.8 \
	    $(BASH_COMPLETIONS)/ocrfs $(ZSH_COMPLETIONS)/_ocrfs $(FISH_COMPLETIONS)/ocrfs.fish \
	    $(SYSTEM_UNITS)/ocrfs@.service $(SYSTEM_UNITS)/ocrfs-sleep.service $(USER_UNITS)/ocrfs@.service
	$(RM) -r $(DESTDIR)$(PREFIX)/libexec/ocrfs $(DESTDIR)$(PREFIX)/lib/ocrfs $(SHARE)/ocrfs/samples
# CUDA=0: without ocrfs-cuda.
deb: ## make Debian packages in build/deb
	$QCUDA=$(CUDA) packaging/debian/deb.sh
check-deb: deb $(OUT)/ocrfs ## check the packages; with debootstrap and root in a Debian of their own
	$Q$(PROVE) tests/deb/test_deb.py
clean: ## remove build/
	$(RM) -r build
help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t12

.PHONY: all man engine demo unit check asan tsan fuzz bench bench-http bench-model lint arrows deps deps-check \
    install uninstall deb check-deb clean help no-tesseract no-http FORCE
.SECONDARY:
-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
