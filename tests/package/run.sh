#!/bin/sh
# Uses the library as others would. run.sh WAY CMAKE BUILD CC:
#   cmake       installs BUILD, configures examples/ against it with find_package, builds and runs them
#   pkgconfig   installs BUILD, compiles each example by hand, shared, with the static library and all static, and runs
#               it; compiles README's
#   moved       the same as cmake, after the installed tree was moved to another place
#   make        make install from a folder that nothing was built in
#   subproject  add_subdirectory: builds the library alone, and nothing of ours besides
set -eu
way=$1 cmake=$2 build=$3 cc=$4
source=$(cd "$(dirname "$0")/../.." && pwd)
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
prefix=$temp/prefix

install() { "$cmake" --install "$build" --prefix "$prefix" >/dev/null; }

run() { # program
    echo "-- ${1##*/}" && "$1"
}

with_cmake() {
    "$cmake" -S "$source/examples" -B "$temp/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_C_FLAGS="-Wall -Wextra -Wpedantic -Werror"
    "$cmake" --build "$temp/build"
    grep -q "^attn_DIR:PATH=$prefix/" "$temp/build/CMakeCache.txt" || { echo "found another attn" && exit 1; }
    for example in minimal gqa_decode masks minimal_static; do run "$temp/build/$example"; done
    for program in "$temp"/build/guide/guide_*; do run "$program"; done
    if [ -e "$temp/build/attn_gpt" ]; then "$temp/build/attn_gpt" --help >/dev/null; fi # where OpenBLAS is found
    run_command
}

run_command() {
    "$prefix/bin/attn" --version
    for page in man/man1/attn.1 bash-completion/completions/attn zsh/site-functions/_attn \
        fish/vendor_completions.d/attn.fish; do
        grep -q 'lens.*-kv' "$prefix/share/$page" || { echo "$page is not installed" && exit 1; }
    done
    printf '#!/bin/sh\necho "error $1"\n' >"$temp/python" && chmod +x "$temp/python"
    (cd / && "$prefix/bin/attn" bench --smoke --suite prefill --peer torch --python "$temp/python") >"$temp/bench"
    grep -q "^no peer: $temp/python: error $prefix/.*/attn/bench/peers/torch_sdpa.py" "$temp/bench" ||
        { cat "$temp/bench" && echo "attn bench does not find its script below $prefix" && exit 1; }
}

with_pkgconfig() {
    pc=$(dirname "$(find "$prefix" -name attn.pc)")
    export PKG_CONFIG_PATH="$pc"
    lib=$(pkg-config --variable=libdir attn)
    for example in minimal gqa_decode masks; do
        # shellcheck disable=SC2046 # words
        $cc -std=c11 "$source/examples/$example.c" -o "$temp/$example" $(pkg-config --cflags --libs attn) -lm
        LD_LIBRARY_PATH=$lib run "$temp/$example"
        # shellcheck disable=SC2046 # words
        $cc -std=c11 "$source/examples/$example.c" -o "$temp/$example-static" \
            $(pkg-config --static --cflags --libs attn)
        if ldd "$temp/$example-static" | grep libattn; then echo "$example-static is not static" && exit 1; fi
        run "$temp/$example-static"
        # shellcheck disable=SC2046 # words
        $cc -std=c11 -static "$source/examples/$example.c" -o "$temp/$example-all" \
            $(pkg-config --static --cflags --libs attn)
        run "$temp/$example-all"
    done
    parallel=$source/examples/guide/parallel.c
    # shellcheck disable=SC2046 # words
    $cc -std=c11 "$parallel" -o "$temp/parallel" $(pkg-config --cflags --libs attn-parallel) -lm -pthread
    LD_LIBRARY_PATH=$lib run "$temp/parallel"
    LD_LIBRARY_PATH=$lib ldd "$temp/parallel" | grep -q "libattn_parallel.so.0 => $prefix" || exit 1
    # shellcheck disable=SC2046 # words
    $cc -std=c11 "$parallel" -o "$temp/parallel-static" $(pkg-config --static --cflags --libs attn-parallel)
    if ldd "$temp/parallel-static" | grep libattn; then echo "parallel-static is not static" && exit 1; fi
    run "$temp/parallel-static"
    if [ -e "$pc/attn-parallel-mpi.pc" ]; then
        echo '#include <attn_parallel_mpi.h>
        int main(void) { return attn_mpi_engine_create(0, 0) != ATTN_INVALID; }' >"$temp/mpi.c"
        # shellcheck disable=SC2046 # words
        $cc -std=c11 "$temp/mpi.c" -o "$temp/mpi" $(pkg-config --cflags --libs attn-parallel-mpi)
        LD_LIBRARY_PATH=$lib run "$temp/mpi"
    fi
    sed -n '/^```c$/,/^```$/{/^```/!p}' "$source/README.md" >"$temp/readme.c"
    grep -q attn_run "$temp/readme.c" || { echo "README.md has no example in C" && exit 1; }
    # shellcheck disable=SC2046 # words
    $cc -std=c11 -Wall -Wextra -Werror -c "$temp/readme.c" -o "$temp/readme.o" $(pkg-config --cflags attn)
    LD_LIBRARY_PATH='' ldd "$temp/minimal" | grep -q 'libattn.so.0 =>' || # not found, or one that is installed
        { echo "the shared example does not need libattn.so.0" && exit 1; }
}

as_subproject() {
    mkdir "$temp/parent"
    cat >"$temp/parent/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(parent LANGUAGES C)
add_subdirectory($source attn)
add_executable(minimal $source/examples/minimal.c)
target_link_libraries(minimal PRIVATE attn::attn_static)
foreach(target attn attn_command attn_check test_grid)
  if(TARGET \${target})
    message(FATAL_ERROR "a subproject should not build \${target}")
  endif()
endforeach()
END
    "$cmake" -S "$temp/parent" -B "$temp/build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_BUILD_TYPE=Release
    "$cmake" --build "$temp/build" --target minimal
    run "$temp/build/minimal"
}

with_make() {
    make -C "$source" BUILD="$temp/build" PREFIX="$prefix" CC="$cc" CMAKE="$cmake" NVCC= install >"$temp/log" ||
        { cat "$temp/log" && exit 1; }
    run_command
}

case $way in
cmake) install && with_cmake ;;
moved) install && mv "$prefix" "$temp/other" && prefix=$temp/other && with_cmake ;;
pkgconfig) install && with_pkgconfig ;;
make) with_make ;;
subproject) as_subproject ;;
*) echo "run.sh: unknown way: $way" >&2 && exit 2 ;;
esac
