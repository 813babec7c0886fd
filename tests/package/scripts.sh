#!/bin/sh
# script/test --kernel NAME fails where one of its steps does, and --help of a script prints what it opens with and
# builds nothing. The programs that the scripts start are made up.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
mkdir "$temp/bin" "$temp/build-kernel"
cp -R "$root/script" "$temp"
sed 's/^setup() *$/setup_unused()/' "$root/script/setup.sh" >"$temp/script/setup.sh"
echo 'setup() { :; }' >>"$temp/script/setup.sh"
for program in bin/cmake bin/ctest build-kernel/attn build-kernel/attn_test_gpu; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/log"\ncase " $FAIL " in *" %s "*) exit 3 ;; esac\n' \
        "$program" "$temp" "$program" >"$temp/$program"
    chmod +x "$temp/$program"
done
PATH="$temp/bin:$PATH"

expect() # status, what fails, arguments of script/test
{
    wanted=$1 FAIL=$2 status=0
    export FAIL
    shift 2
    : >"$temp/log"
    "$temp/script/test" "$@" >"$temp/out" 2>&1 || status=$?
    [ $status = "$wanted" ] && return
    echo "script/test $* with '$FAIL' failing: $status, not $wanted"
    cat "$temp/out"
    exit 1
}

for kernel in sm90_bf16_d64_128x128 sm90_fallback_f32; do
    expect 0 '' --kernel $kernel
    expect 3 bin/cmake --kernel $kernel
    expect 3 build-kernel/attn --kernel $kernel
done
expect 3 build-kernel/attn_test_gpu --kernel sm90_bf16_d64_128x128

for script in conformance demo fuzz sanitize setup.sh test test-gpu test-nvrtc test-python; do
    : >"$temp/log"
    (cd / && "$temp/script/$script" --help) >"$temp/out"
    [ "$(head -n 1 "$temp/out")" = "$(sed -n '2s/^# //p' "$temp/script/$script")" ] || { cat "$temp/out" && exit 1; }
    ! grep -q 'set -eu' "$temp/out" || { echo "$script --help prints code" && exit 1; }
    [ ! -s "$temp/log" ] || { echo "$script --help runs something" && cat "$temp/log" && exit 1; }
done
echo passed
