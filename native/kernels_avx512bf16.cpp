// The kernels for one instruction set. Everything is internal to this file, so that no code built with its flags can be
// chosen by the linker for the rest of the program.
#include <immintrin.h>
#include "kernels.h"
#include "numbers.h"

namespace pilotfish {
namespace {
#define PF_DOT_BFLOAT16 1  // before the lanes: they have one instruction more
#include "simd_avx512.inl"
// The order matters: each builds on the one before.
#include "kernels_math.inl"
#include "kernels_linear.inl"
#include "kernels_attention.inl"
#include "kernels_noise.inl"
}  // namespace

const KernelTable& avx512bf16_kernels() {
  static constexpr KernelTable table{"avx512bf16",       linear,       attend,        rms_norm,           gate,
                                     group_sums,     round_bfloat16, block_maxima,  gumbel_argmax,
                                     multiply_add_burst, multiply_pairs_burst, read_burst};
  return table;
}

}  // namespace pilotfish
