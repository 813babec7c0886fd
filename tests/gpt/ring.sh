#!/bin/sh
# attn_ring from outside: the losses of ranks are one device's, and what it refuses. ring.sh TEXT ATTN_RING
set -eu
text=$1 ring=$2
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
fail() {
    echo "FAILED: $*" >&2
    exit 1
}

for ranks in 1 2 3; do
    "$ring" $ranks 50 "$text" >"$temp/out" || fail "$ranks ranks: $(tail -n 1 "$temp/out")"
    [ "$(grep -c '^ *[0-9]* *[0-9.]* *[0-9.]*$' "$temp/out")" = 50 ] || fail "$ranks ranks: not 50 steps"
done
for words in 0 65 '2 0' "2 1 $text more" 'two'; do
    status=0
    "$ring" $words >/dev/null 2>&1 || status=$?
    [ $status = 2 ] || fail "'$words': $status"
done
status=0
"$ring" 40 1 "$text" >/dev/null 2>&1 || status=$? # a context of 256 has 16 chunks of 16 rows
[ $status = 1 ] || fail "ranks without rows: $status"
