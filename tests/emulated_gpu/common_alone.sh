#!/bin/sh
# The device code of every architecture compiles where no architecture is: common_alone.sh CXX [NVCC]. On the emulated
# GPU by CXX; by NVCC, if there is one, for an architecture that is not ours: the first that converts E4M3, which kernels
# of keys of a byte do (gpu.h).
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r src/cuda/common "$folder"
cat > "$folder/unit.cu" <<'END'
#include "common/combine.h"
#include "common/decode/kernel.h"
#include "common/fallback_backward.h"
#include "common/fallback_forward.h"
#include "common/find_sequence.h"
#include "common/merge.h"
#include "common/pages.h"
#include "common/quant.h"

#define KERNELS_OF(dtype)                                                                              \
    extern "C" __global__ void forward_##dtype(attn_cuda_params p) { attend_row<dtype>(&p); }            \
    extern "C" __global__ void combine_##dtype(attn_cuda_shape p) { combine_row<dtype>(&p, 2, 64); }     \
    extern "C" __global__ void merge_##dtype(attn_cuda_merge_params p) { merge_row<dtype>(&p); }         \
    extern "C" __global__ void q_##dtype(attn_cuda_backward_params p) { fallback_q<dtype>(&p); }         \
    extern "C" __global__ void kv_##dtype(attn_cuda_backward_params p) { fallback_kv<dtype>(&p); }       \
    extern "C" __global__ void bias_##dtype(attn_cuda_backward_params p) { fallback_bias<dtype>(&p); }

QUANT_KERNELS_OF(F32, f32)
KERNELS_OF(F32)
KERNELS_OF(F16)
KERNELS_OF(BF16)

extern "C" __global__ void decode_128(attn_decode_params p) { decode<decode_config<BF16, BF16, 128, 128, 32, 1>>(&p); }
extern "C" __global__ void decode_two_dims(attn_decode_params p) { decode<decode_config<F16, F16, 128, 64, 32, 1>>(&p); }
extern "C" __global__ void classify(attn_cuda_shape shape, attn_cuda_mask mask, bool *seen)
{
    struct {
        int batch, head, len_q, len_kv;
    } rows = { 0, 0, 64, 64 };
    *seen = classify_tile(&shape, &mask, &rows, 1, 0, 64, 0, 64).seen;
}
END
printf '#include "device.h"\n#include "unit.cu"\n' | "$1" -x c++ -std=c++17 -fpermissive -w -Werror=undef \
    -fsyntax-only -Itests/emulated_gpu -Iinclude -Isrc -I"$folder" -
if [ -n "${2:-}" ]; then
    "$2" -std=c++17 -cubin -arch=sm_89 -I"$folder" "$folder/unit.cu" -o "$folder/unit.cubin"
fi
echo "src/cuda/common compiles alone"
