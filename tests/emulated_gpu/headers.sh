#!/bin/sh
# Each header of the device code compiles alone, with device.h in place of the instructions: headers.sh CXX [PART PARTS]. The
# forward's and the backward's for two variants each. PARTS: each PARTS-th header, from the PART-th on.
set -eu
cd "$(dirname "$0")/../.."
variant='-DATTN_NAME=x -DATTN_DTYPE=BF16 -DATTN_DIM=128 -DATTN_DIM_V=128 -DATTN_Q_TILE=128 -DATTN_STAGES=3'
plain="$variant -DATTN_KV_TILE=128 -DATTN_Q_STAGES=1 -DATTN_SCHEDULE=PINGPONG -DATTN_S_BUFFERS=1 \
    -DATTN_MASK=CAUSAL -DATTN_SCORE=PLAIN -DATTN_KV=PAGED"
score_mod="$variant -DATTN_KV_TILE=64 -DATTN_Q_STAGES=2 -DATTN_SCHEDULE=INTERLEAVED -DATTN_S_BUFFERS=2 \
    -DATTN_MASK=GENERAL -DATTN_SCORE=SCORE_MOD -DATTN_KV=CONTIGUOUS"
backward='-DATTN_NAME=x -DATTN_DTYPE=BF16 -DATTN_DQ=ACCUMULATED'
d128="$backward -DATTN_DIM=128 -DATTN_DIM_V=128 -DATTN_KV_TILE=128 -DATTN_STAGES=3 -DATTN_CLUSTER=1 \
    -DATTN_MASK=GENERAL -DATTN_SCORE=SCORE_MOD"
d256="$backward -DATTN_DIM=256 -DATTN_DIM_V=256 -DATTN_KV_TILE=64 -DATTN_STAGES=2 -DATTN_CLUSTER=2 \
    -DATTN_MASK=CAUSAL -DATTN_SCORE=PLAIN"
count=0 number=0 part=${2:-1} parts=${3:-1}
for header in src/cuda/common/*.h src/cuda/common/decode/*.h src/cuda/sm90/common/*.h src/cuda/sm90/forward/*.h src/cuda/sm90/backward/*.h; do
    case $header in
    */params.h | */widen_params.h | */quant_params.h) continue ;; # they include nothing, for the host's sake
    */backward/*) first=$d128 second=$d256 ;;
    */forward/*) first=$plain second=$score_mod ;;
    *) first=$plain second= ;;
    esac
    number=$((number + 1))
    [ $((number % parts)) = $((part % parts)) ] || continue
    for defines in "$first" ${second:+"$second"}; do
        # shellcheck disable=SC2086 # words
        printf '#include "device.h"\n#include "%s"\n' "${header#src/cuda/}" | "$1" -x c++ -std=c++17 -fpermissive -w \
            -Werror=undef -fsyntax-only -Itests/emulated_gpu -Isrc -Isrc/cuda -Iinclude $defines - ||
            { echo "$header does not compile alone" && exit 1; }
    done
    count=$((count + 1))
done
echo "$count device headers compile alone"
