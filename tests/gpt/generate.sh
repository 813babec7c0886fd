#!/bin/sh
# attn_generate from outside: a small model writes many answers at once, the same ones whatever the pool makes of them.
# generate.sh ATTN_GPT ATTN_GENERATE
set -eu
gpt=$1 generate=$2
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"
i=0
while [ $i -lt 200 ]; do
    echo "The quick brown fox jumps over the lazy dog, $i times."
    i=$((i + 1))
done >text.txt

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

"$gpt" --text text.txt --layers 2 --dim 64 --heads 2 --context 64 --steps 60 --out model.safetensors >out

status=0
"$generate" model.safetensors >out 2>err || status=$?
[ $status = 2 ] || fail "without a prompt: $status"
grep -q '^usage: ' err || fail "no usage: $(cat err)"

status=0
"$generate" model.safetensors 'The quick brown fox' 2 1 40 2 >out 2>err || status=$?
[ $status = 1 ] || fail "with 2 pages: $status"
grep -q '2 pages are too few' err || fail "no reason: $(cat err)"

# A prompt longer than some pages, three answers each: with room for all, and with so few pages that some must wait.
prompt='The quick brown fox jumps over the lazy dog, and then again, and'
"$generate" model.safetensors "$prompt" 5 3 40 1024 >large
"$generate" model.safetensors "$prompt" 5 3 40 12 >small
sed -n 1,15p large >large.text
sed -n 1,15p small >small.text
cmp large.text small.text || fail "a small pool writes other answers"
[ "$(wc -l <large.text)" = 15 ] || fail "not 15 answers"
grep -Eq ' [1-9][0-9]* found in published pages, [1-9][0-9]* forks, [1-9][0-9]* pages copied, 0 times preempted' large ||
    fail "nothing shared: $(tail -3 large)"
grep -Eq ' [1-9][0-9]* times preempted' small || fail "nobody waited: $(tail -3 small)"
grep -q '^12 of 12 pages used at most' small || fail "pages: $(tail -1 small)"
