# Thin over CMake: see `make help`. BUILD is the build folder, CC and CFLAGS are taken on its first configuration.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE ?= cmake

all: configure
	@$(CMAKE) --build $(BUILD) --parallel $(JOBS) --target attn attn_static attn_shared

configure:
	@$(CMAKE) -S . -B $(BUILD) >/dev/null

demo:
	@script/demo

test:
	@script/test

test-gpu:
	@script/test-gpu

bench: all
	@$(BUILD)/attn bench

install: all
	@$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

sanitize:
	@script/sanitize address,undefined
	@script/sanitize thread

fuzz:
	@script/fuzz

clean:
	@rm -rf build build-*

help:
	@echo 'make            build/attn, build/libattn.a, build/libattn.so (needs cc and cmake)'
	@echo 'make demo       what it is good for, on real input'
	@echo 'make test       build and run the tests (installs what they need, see script/setup.sh)'
	@echo 'make test-gpu   the CUDA kernels on this machine'"'"'s first GPU'
	@echo 'make bench      measure this machine, beside its peers and its limits'
	@echo 'make install    to PREFIX ($(PREFIX)), below DESTDIR if that is set'
	@echo 'make sanitize   the tests under ASan and UBSan, then under TSan'
	@echo 'make fuzz       each fuzzer for FUZZ_SECONDS (20)'
	@echo 'make clean      remove build and build-*'
	@echo 'Variables: BUILD, PREFIX, DESTDIR, JOBS, CMAKE, CC, CFLAGS'

.PHONY: all configure demo test test-gpu bench install sanitize fuzz clean help
