#!/bin/sh
# script/heartbeat: a line while a test is silent, which names it, and none while there are others; ctest's own status.
# Its ctest is made up.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cat >"$temp/ctest" <<'END'
echo '      Start  1: test_slow'
echo '      Start 12: test_quick'
echo ' 1/2 Test #12: test_quick .......   Passed    1.0 sec'
while ! grep -q 'running: test_slow' "$1"; do sleep 0.1; done
echo ' 2/2 Test  #1: test_slow ........***Failed    1.0 sec'
exit 8
END
: >"$temp/out"
status=0
timeout 60 "$root/script/heartbeat" 1 sh "$temp/ctest" "$temp/out" >"$temp/out" || status=$?
[ $status = 8 ] || { echo "ended with $status, not as ctest" && exit 1; }
grep -q '^ *[0-9]* s, 1 done; running: test_slow$' "$temp/out" || { cat "$temp/out" && exit 1; }
tail -n 1 "$temp/out" | grep -q Failed || { echo "a line after the end" && exit 1; }
status=0
"$root/script/heartbeat" 1 true || status=$?
[ $status = 0 ] || { echo "ended with $status" && exit 1; }
echo passed
