# Thin over CMake: see `make help`. BUILD is the build folder, CC and CFLAGS are taken on its first configuration.
# NVCC, once given, is kept there: a compiler, or empty for none.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE ?= cmake

MAKEFLAGS += --no-print-directory

ifneq ($(origin NVCC),undefined)
nvcc = '-DATTN_NVCC=$(NVCC)'
endif

all: configure
	@$(CMAKE) -DBUILD=$(BUILD) -P cmake/says.cmake
	@$(CMAKE) --build $(BUILD) --parallel $(JOBS) --target attn attn_static attn_shared

configure:
	@$(CMAKE) -S . -B $(BUILD) $(nvcc) >/dev/null

demo:
	@script/demo

test:
	@script/test

test-gpu:
	@script/test-gpu

bench: all
	@$(BUILD)/attn bench

install: all
	@$(CMAKE) --build $(BUILD) --parallel $(JOBS) --target attn_installed
	@$(CMAKE) --install $(BUILD) --prefix $(PREFIX)

sanitize:
	@script/sanitize address,undefined
	@script/sanitize thread

fuzz:
	@script/fuzz

clean:
	@rm -rf build build-*

help:
	@echo 'make            build/attn, build/libattn.a, build/libattn.so (needs cc and cmake; GPU kernels too where nvcc is)'
	@echo 'make NVCC=      the same without GPU kernels: NVRTC compiles them when they are used'
	@echo 'make demo       what it is good for, on real input'
	@echo 'make test       build and run the tests (installs what they need, see script/setup.sh)'
	@echo 'make test-gpu   the CUDA kernels on this machine'"'"'s first GPU'
	@echo 'make bench      measure this machine, beside its peers and its limits'
	@echo 'make install    to PREFIX ($(PREFIX)), below DESTDIR if that is set'
	@echo 'make sanitize   the tests under ASan and UBSan, then under TSan'
	@echo 'make fuzz       each fuzzer for FUZZ_SECONDS (20)'
	@echo 'make clean      remove build and build-*'
	@echo 'Variables: BUILD, PREFIX, DESTDIR, JOBS, CMAKE, CC, CFLAGS, NVCC'

.PHONY: all configure demo test test-gpu bench install sanitize fuzz clean help
