#!/bin/sh
# attn_gpt from outside: options and files that are refused, and a run that is saved, resumed and sampled.
# command.sh ATTN_GPT
set -eu
gpt=$1
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

refuses() { # code, part of the message, options ...
    code=$1 part=$2
    shift 2
    status=0
    "$gpt" "$@" >out 2>err || status=$?
    [ "$status" = "$code" ] || fail "$* ended with $status, not $code"
    grep -qF -e "$part" err || fail "the message of $* lacks '$part': $(cat err)"
}

refuses 2 'unknown option --stepz; did you mean --steps?' --stepz 3
refuses 2 'unknown option --secs; did you mean --seconds?' --secs 3
refuses 2 '--steps 0: takes a whole number, 1 or more' --steps 0
refuses 2 '--attention fast: takes libattn or standard' --attention fast
refuses 2 'takes a name that ends in .safetensors' --out model.bin
refuses 2 'takes one of them' --steps 3 --seconds 3
refuses 2 'need --sample' --tokens 5
refuses 2 'leave them out' --resume model.safetensors --dim 8
refuses 2 '--bench only measures' --bench --steps 3
refuses 1 'heads 3: takes a divisor of dim 32' --dim 32 --heads 3
refuses 1 'layers 65: takes 1 to 64' --layers 65
refuses 1 'batch * context 16777216' --context 4096 --batch 4096
refuses 1 'no file of this name: nothing*.txt' --text 'text.txt,nothing*.txt' --steps 1
refuses 1 'not at the root of the repository: no file of this name: README.md' --steps 1
refuses 1 'takes more' --text text.txt --context 100000 --steps 1
refuses 1 'model.safetensors: cannot open' --resume model.safetensors
refuses 1 'text.txt: not a safetensors file' --resume text.txt --sample a
refuses 1 'nowhere/model.safetensors: cannot write' --attention standard --text text.txt --steps 1 --layers 1 --dim 32 --heads 1 --out nowhere/model.safetensors

small='--threads 2 --text text.txt'
# shellcheck disable=SC2086 # words
{
    "$gpt" $small --layers 2 --dim 32 --heads 2 --context 64 --batch 2 --steps 20 --out whole.safetensors >log
    grep -q '^ *20 ' log || fail "no line of the last step: $(cat log)"
    grep -q '<svg' whole.svg || fail 'no curve'
    "$gpt" $small --layers 1 --dim 32 --heads 1 --context 32 --seconds 0.1 >log
    grep -q '^ *[1-9][0-9]* .* 0:00$' log || fail "no last step of a run of 0.1 s: $(cat log)"
    # It stops by the clock, however slow the machine becomes on the way: here it stands still for all of the time.
    : >stopped # there before its writer is
    "$gpt" $small --layers 1 --dim 32 --heads 1 --context 32 --seconds 6 >stopped &
    until grep -q '^ *[0-9].*:' stopped; do sleep 0.1; done
    kill -STOP $!
    before=$(wc -l <stopped)
    sleep 6
    kill -CONT $!
    wait $! || fail 'a run that stood still failed'
    [ "$(wc -l <stopped)" -le $((before + 2)) ] || fail "went on when its time was over, after $before lines: $(cat stopped)"
    "$gpt" $small --resume whole.safetensors --steps 30 --out more.safetensors >/dev/null
    refuses 1 'has done 30' $small --resume more.safetensors --steps 20
    "$gpt" --resume more.safetensors --sample 'The quick' --tokens 50 --seed 1 >one
    "$gpt" --resume more.safetensors --sample 'The quick' --tokens 50 --seed 1 >two
    grep -q '^The quick' one && [ "$(head -n 1 one)" = "$(head -n 1 two)" ] || fail 'two samples of one seed differ'
    "$gpt" --bench --layers 1 --dim 32 --heads 1 --context 64 --batch 1 | grep -q '^ *64 *1 .*x .*x$' || fail 'no bench'
}
[ "$(find . -name '*.tmp')" = '' ] || fail 'a temporary file was left'
echo passed
