#!/bin/sh
# Finds what is missing on this machine by trying it, and installs just that.
#
#   script/setup.sh NEED ...     or, from another script:  . script/setup.sh; setup NEED ...
#
# Needs: build (cc, cmake, make), tests (build, a C++ compiler, cmocka, pkg-config, python3), fuzz (clang and its fuzzer
# runtime), blas (OpenBLAS: examples/gpt, and the peer that is measured), mpi (Open MPI: attention over ranks), ci (tests,
# fuzz, blas, mpi, gcc and git), format (clang-format-14), aarch64 (its cross compiler and qemu), pip (for Python packages).
# Nothing missing: nothing is run. Otherwise apt-get installs it, as root or through sudo; where neither will do, the
# exact line to run is printed and the script stops. ATTN_NO_INSTALL=1: never installs, only says what is missing.

# Each try_* succeeds if the thing works, whatever package it came from.
try_program() # compiler, flags, source
{
    setup_dir=$(mktemp -d) || return 1
    printf '%s\n' "$3" >"$setup_dir/try.c"
    # shellcheck disable=SC2086 # flags are words
    $1 "$setup_dir/try.c" -o "$setup_dir/try" $2 >/dev/null 2>&1 && "$setup_dir/try" >/dev/null 2>&1
    setup_status=$?
    rm -rf "$setup_dir"
    return $setup_status
}

try_cc()
{
    try_program "${CC:-cc}" "-lm -pthread" '#include <math.h>
#include <pthread.h>
int main(int n, char **v) { (void)v; return sqrt(n) > 2; }'
}

try_cxx()
{
    printf '#include <vector>\nint main() { return 0; }\n' | "${CXX:-c++}" -x c++ - -o /dev/null >/dev/null 2>&1
}

try_gcc()
{
    CC=gcc try_cc
}

try_git()
{
    git --version >/dev/null 2>&1
}

try_cmake()
{
    setup_version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    # shellcheck disable=SC2086 # two words
    set -- $setup_version
    [ $# = 2 ] && { [ "$1" -gt 3 ] || { [ "$1" = 3 ] && [ "$2" -ge 22 ]; }; }
}

try_make()
{
    printf 'all:\n\t@true\n' | make -f - >/dev/null 2>&1
}

try_cmocka()
{
    try_program "${CC:-cc}" "-lcmocka" '#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
int main(void) { print_message(""); return 0; }'
}

try_pkg_config()
{
    pkg-config --version >/dev/null 2>&1
}

try_python3()
{
    python3 -c 'import json, struct, subprocess, unittest' >/dev/null 2>&1
}

try_pip()
{
    python3 -m pip --version >/dev/null 2>&1
}

try_clang()
{
    ASAN_OPTIONS=detect_leaks=0 try_program clang "-fsanitize=fuzzer,address,undefined" '#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
int LLVMFuzzerInitialize(int *n, char ***v) { (void)n, (void)v; exit(0); }
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) { (void)p; return n > 9; }'
}

try_clang_format()
{
    clang-format-14 --version >/dev/null 2>&1
}

try_aarch64()
{
    printf 'int main(void) { return 0; }\n' | aarch64-linux-gnu-gcc -x c - -o /dev/null >/dev/null 2>&1 &&
        qemu-aarch64 --version >/dev/null 2>&1
}

try_blas()
{
    setup_blas=$(pkg-config --cflags --libs openblas 2>/dev/null || echo -lopenblas)
    try_program "${CC:-cc}" "$setup_blas -ldl" '#include <cblas.h>
#include <dlfcn.h>
int main(void) { openblas_set_num_threads(1); return !dlopen("libopenblas.so.0", RTLD_NOW); }'
}

try_mpi()
{
    try_program "${CC:-cc}" "$(pkg-config --cflags --libs mpi-c 2>/dev/null)" '#include <mpi.h>
int main(void) { return MPI_VERSION < 3; }' && mpirun --version >/dev/null 2>&1
}

# The Debian packages of each.
packages_of()
{
    case $1 in
    cc) echo gcc libc6-dev ;;
    cxx) echo g++ ;;
    gcc) echo gcc libc6-dev ;;
    git) echo git ;;
    cmake) echo cmake ;;
    make) echo make ;;
    cmocka) echo libcmocka-dev ;;
    pkg_config) echo pkg-config ;;
    python3) echo python3 ;;
    pip) echo python3-pip ;;
    clang) setup_clang_packages ;;
    clang_format) echo clang-format-14 ;;
    aarch64) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user ;;
    blas) echo libopenblas-pthread-dev ;;
    mpi) echo libopenmpi-dev openmpi-bin ;;
    esac
}

# Newer releases keep the fuzzer's runtime in a package of its own, named after the version.
setup_clang_packages()
{
    echo clang
    apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/libclang-rt-\1-dev/p' |
        while read -r runtime; do apt-cache show "$runtime" >/dev/null 2>&1 && echo "$runtime"; done
}

setup_missing()
{
    for part in "$@"; do "try_$part" || echo "$part"; done
}

setup_parts()
{
    for need in "$@"; do
        case $need in
        build) echo cc cmake make ;;
        tests) echo cc cxx cmake make cmocka pkg_config python3 ;;
        fuzz) echo cc cmake make clang ;;
        blas) echo cc blas ;;
        mpi) echo cc pkg_config mpi ;;
        ci) echo git cc cxx gcc cmake make cmocka pkg_config python3 clang blas mpi ;;
        pip) echo python3 pip ;;
        format) echo clang_format ;;
        aarch64) echo aarch64 ;;
        *) echo "setup.sh: unknown need: $need" >&2 && return 1 ;;
        esac
    done | tr ' ' '\n' | awk '!seen[$0]++'
}

# setup_packages PART ...: their packages in one line.
setup_packages()
{
    for part in "$@"; do packages_of "$part"; done | tr ' ' '\n' | awk '!seen[$0]++' | paste -sd ' ' -
}

# setup_dots COMMAND ...: runs it, a dot a second; what it printed is shown if it fails.
setup_dots()
{
    setup_log=$(mktemp) || return 1
    while printf . && sleep 1 && kill -0 $$ 2>/dev/null; do :; done &
    setup_ticker=$!
    setup_status=0 # where the caller ends at errors, too
    "$@" >"$setup_log" 2>&1 || setup_status=$?
    kill "$setup_ticker" 2>/dev/null
    wait "$setup_ticker" 2>/dev/null || :
    echo
    [ "$setup_status" = 0 ] || cat "$setup_log" >&2
    rm -f "$setup_log"
    return "$setup_status"
}

# Sets setup_sudo to what makes apt-get run as root: nothing, sudo without a question, or sudo that has asked its question.
setup_root()
{
    setup_sudo=
    [ "$(id -u)" = 0 ] && return 0
    setup_sudo="sudo -n"
    sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null && sudo -v; }
}

setup_apt()
{
    # shellcheck disable=SC2086 # words
    setup_dots $setup_sudo env DEBIAN_FRONTEND=noninteractive apt-get "$@"
}

setup()
{
    # shellcheck disable=SC2046,SC2086 # lists of words
    set -- $(setup_missing $(setup_parts "$@"))
    [ $# = 0 ] && return 0
    if ! command -v apt-get >/dev/null; then
        echo "Missing: $* (Debian packages: $(setup_packages "$@")). Please install them with this system's tools." >&2
        return 1
    fi
    if [ "${ATTN_NO_INSTALL:-}" ]; then
        echo "Missing: $*. ATTN_NO_INSTALL is set; to install: apt-get install $(setup_packages "$@")" >&2
        return 1
    fi
    echo "Missing: $*."
    if ! setup_root; then
        echo "Neither root nor sudo. To install: sudo apt-get install $(setup_packages "$@")" >&2
        return 1
    fi
    echo "+ apt-get update"
    setup_apt -q update || echo "apt-get update failed; trying with the package lists at hand." >&2
    setup_list=$(setup_packages "$@")
    echo "+ apt-get install -y --no-install-recommends $setup_list"
    # shellcheck disable=SC2086 # a list of words
    setup_apt install -q -y -o Dpkg::Use-Pty=0 --no-install-recommends $setup_list || return 1
    # shellcheck disable=SC2046
    set -- $(setup_missing "$@")
    [ $# = 0 ] && return 0
    echo "Still missing after installing: $*" >&2
    return 1
}

# --help of whichever script this is: the comment that it opens with. Those that include this file stand in script's
# parent by now, where a relative $0 no longer leads.
case ${1:-} in
-h | --help)
    setup_script=script/${0##*/}
    [ -f "$setup_script" ] || setup_script=$0
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$setup_script"
    exit 0
    ;;
esac

case ${0##*/} in
setup.sh) setup "$@" ;;
esac
