// The table of kernels that each instruction set fills in.
//
// All instruction sets give the same bits: one lane is one output (a column, a position or a head dimension), sums run
// over their inputs in ascending order with fused multiply-adds, and reductions across lanes have sixteen virtual
// lanes folded in a fixed order. Nothing here depends on the number of rows in a pass.
#pragma once
#include <cstddef>
#include <cstdint>

#define PF_INLINE static inline __attribute__((always_inline))

namespace pilotfish {

constexpr int kTileColumns = 32;   // output columns of a packed weight tile
constexpr int kGroup = 32;         // inputs that share a scale in int8 storage
constexpr int kMaximumBlock = kTileColumns;  // values that share a maximum in block_maxima
constexpr int kPagePositions = 32; // positions of a cache page, and of a step of the online softmax

// How a packed matrix is stored. Pairs multiply inputs that are rounded to bfloat16. The grouped forms differ in the type
// of scale and in having a minimum.
enum class Storage : int {
  kFloat32,
  kBFloat16,
  kBFloat16Pairs,
  kInt8Half,
  kInt8HalfMinimum,
  kInt8Float,
  kInt8FloatMinimum
};

// Rows times one tile of 32 columns. out[row][32] = sum over k of x[row][k] * w[k][column].
struct LinearArgs {
  Storage storage;
  const uint8_t* tile;
  int64_t k;           // inputs, a multiple of 32 for the grouped storages, of 2 for pairs
  int64_t tile_bytes;
  int64_t rows;
  const float* x;      // [rows][x_stride], zero up to k rounded to 32; for pairs each row begins with k bfloat16 instead
  int64_t x_stride;    // floats, in every storage
  const float* group_sums;  // [rows][sums_stride], needed where the storage has a minimum
  int64_t sums_stride;
  float* out;               // [rows][32]
  const uint8_t* prefetch;  // the next tile, brought near while this one is computed; may be null
};

// One block of rows of one sequence against one key-value head.
struct AttendArgs {
  float* const* pages;    // the sequence's pages
  int64_t key_offset;     // where this layer and head begin in a page: keys as [dimension][32]
  int64_t value_offset;   // values as [32][padded_dimension]
  int64_t head_dim, padded_dim;
  int64_t rows, heads;    // query heads per key-value head
  const int64_t* position;  // per row; ascending by one where slots are positions
  int64_t window;           // latest positions seen; 0 sees all
  int64_t committed;        // positions below stand in the slot of the same number
  const int32_t* const* paths;  // per row of a tree: nodes from the root to the row itself; null when slots are positions
  int64_t last_node;            // the highest node on any path
  const float* query;       // [rows * heads][padded_dim]
  float* out;               // [rows * heads][padded_dim]
  float* scratch;           // attend_scratch() floats
};

enum class Activation : int { kSilu, kGeluTanh };

struct KernelTable {
  const char* name;
  void (*linear)(const LinearArgs&);
  void (*attend)(const AttendArgs&);
  // out = x / sqrt(mean(x^2) + epsilon) * weight, n values; all arrays zero-padded to a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float epsilon, float* out);
  // out[i] = activation(gate[i]) * up[i], 16 columns for each row of a [rows][32] tile (16 gates, 16 ups).
  void (*gate)(Activation activation, const float* tile, int64_t rows, float* out, int64_t out_stride);
  // Sums of the groups of 32 values.
  void (*group_sums)(const float* x, int64_t groups, float* sums);
  // out[i] = x[i] rounded to bfloat16, to nearest, ties to even, subnormal numbers to zero. `out` may begin where `x` does.
  void (*round_bfloat16)(const float* x, int64_t n, uint16_t* out);
  // maxima[i] = the highest of values[32 i] to values[32 i + 31], -inf where all are NaN. Returns whether every value is
  // regular, that is below +inf and not NaN.
  bool (*block_maxima)(const float* values, int64_t blocks, float* maxima);
  // The token that maximises score + Gumbel noise, or -1 when every score is -inf or NaN. A temperature above 0 is applied
  // first; then -1 as well where a score is NaN or +inf.
  int64_t (*gumbel_argmax)(const float* scores, int64_t vocabulary, uint64_t seed, uint32_t position,
                           float temperature);
  // Independent fused multiply-adds; returns how many floating-point operations were done.
  double (*multiply_add_burst)(int64_t repeats, float* sink);
  // The same with the products of storage in pairs.
  double (*multiply_pairs_burst)(int64_t repeats, float* sink);
  // Reads memory from end to end, `bytes` a multiple of 256.
  float (*read_burst)(const uint8_t* memory, int64_t bytes);
};

inline int64_t attend_scratch(int64_t rows, int64_t heads, int64_t tree_slots) {
  return rows * heads * (kPagePositions + 2 + tree_slots + 2 * kPagePositions) + 64;
}

const KernelTable& portable_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
const KernelTable& avx512bf16_kernels();
const KernelTable& neon_kernels();

}  // namespace pilotfish
