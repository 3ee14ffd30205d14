// Rows times packed weight tiles. Every output has one chain of fused multiply-adds over k (for the grouped storages
// one chain per group and one over the groups), whatever the number of rows, so blocks of any height agree bit for bit.

struct BlockArgs {
  const float* x;
  int64_t x_stride;
  const float* sums;
  int64_t sums_stride;
  const uint8_t* tile;
  int64_t k;
  int64_t half;  // which 16 columns, for the blocks that cover half a tile
  float* out;
  const uint8_t* prefetch;
  int64_t prefetch_step;  // bytes to go on for each 64 bytes of weights read
};

struct Float32Tile {
  static constexpr int kBytesPerInput = 128;
  template <int Width>
  PF_INLINE void read(const uint8_t* at, int64_t half, V16* w) {
    const float* values = reinterpret_cast<const float*>(at) + half * 16;
    w[0] = load(values);
    if (Width == 2) w[Width - 1] = load(values + 16);
  }
};

// A 32-bit word holds column c in its low half and column c + 16 in its high half.
struct BFloat16Tile {
  static constexpr int kBytesPerInput = 64;
  template <int Width>
  PF_INLINE void read(const uint8_t* at, int64_t half, V16* w) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(at);
    if (Width == 2) {
      w[0] = bfloat16_low(words);
      w[Width - 1] = bfloat16_high(words);
    } else {
      w[0] = half ? bfloat16_high(words) : bfloat16_low(words);
    }
  }
};

// [k / 2][32] words of two inputs each, the earlier in the low half.
struct PairsTile {};

template <int Rows, int Width, class Tile>
void plain_block(const BlockArgs& a) {
  V16 sums[Rows][Width];
  const float* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = a.x + r * a.x_stride;
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) sums[r][v] = zero();
  }
  const uint8_t* at = a.tile;
  const uint8_t* ahead = a.prefetch;
  const int64_t half = a.half, step = a.prefetch_step, inputs = a.k;
#pragma GCC unroll 4
  for (int64_t k = 0; k < inputs; ++k) {
    V16 w[Width];
    Tile::template read<Width>(at, half, w);
    at += Tile::kBytesPerInput;
#pragma GCC unroll 2
    for (int line = 0; line < Tile::kBytesPerInput / 64; ++line) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < Width; ++v) sums[r][v] = fma_scalar(x[r] + k, w[v], sums[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) store(a.out + r * kTileColumns + (half + v) * 16, sums[r][v]);
}

// Inputs and weights in bfloat16, two inputs to a 32-bit word: a word of x times the words of one input pair's 16 columns.
// The products are exact in float32; the second of a pair is added first, as the processors' instruction does it, and
// subnormal sums become zero.
template <int Rows, int Width>
void pairs_block(const BlockArgs& a) {
  V16 sums[Rows][Width];
  const uint32_t* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = reinterpret_cast<const uint32_t*>(a.x + r * a.x_stride);
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) sums[r][v] = zero();
  }
  const uint32_t* at = reinterpret_cast<const uint32_t*>(a.tile) + a.half * 16;
  const uint8_t* ahead = a.prefetch;
  const int64_t step = a.prefetch_step, pairs = a.k / 2;
#pragma GCC unroll 4
  for (int64_t k = 0; k < pairs; ++k) {
    Pairs w[Width];
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) w[v] = load_pairs(at + v * 16);
    at += kTileColumns;
#pragma GCC unroll 2
    for (int line = 0; line < 2; ++line) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < Width; ++v) sums[r][v] = add_products(x[r] + k, w[v], sums[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) store(a.out + r * kTileColumns + (a.half + v) * 16, sums[r][v]);
}

// A group: 32 inputs of 32 int8 columns, then 32 scales, then (in some storages) 32 minimums.
template <bool HalfScales, bool Minimum>
struct Int8Group {
  static constexpr int kFactorBytes = kTileColumns * (HalfScales ? 2 : 4);
  static constexpr int kBytes = kGroup * kTileColumns + kFactorBytes * (Minimum ? 2 : 1);
  static constexpr bool kMinimum = Minimum;
  PF_INLINE V16 factors(const uint8_t* at, int64_t part) {
    if (HalfScales) return from_float16(reinterpret_cast<const uint16_t*>(at) + part * 16);
    return load(reinterpret_cast<const float*>(at) + part * 16);
  }
};

template <int Rows, int Width, class Group>
void grouped_block(const BlockArgs& a) {
  alignas(64) float totals[Rows][Width][16];
  const float* x[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    x[r] = a.x + r * a.x_stride;
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) store(totals[r][v], zero());
  }
  const uint8_t* at = a.tile;
  const uint8_t* ahead = a.prefetch;
  const int64_t half = a.half, groups = a.k / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    V16 sums[Rows][Width];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < Width; ++v) sums[r][v] = zero();
    const int8_t* quants = reinterpret_cast<const int8_t*>(at) + half * 16;
    for (int64_t k = 0; k < kGroup; k += 4) {
#pragma GCC unroll 4
      for (int64_t i = k; i < k + 4; ++i) {
        V16 w[Width];
#pragma GCC unroll 2
        for (int v = 0; v < Width; ++v) w[v] = from_int8(quants + i * kTileColumns + v * 16);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < Width; ++v) sums[r][v] = fma_scalar(x[r] + i, w[v], sums[r][v]);
      }
#pragma GCC unroll 2
      for (int line = 0; line < 2; ++line) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += a.prefetch_step;
      }
    }
    const uint8_t* factors = at + kGroup * kTileColumns;
#pragma GCC unroll 2
    for (int line = 0; line < (Group::kBytes - kGroup * kTileColumns) / 64; ++line) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += a.prefetch_step;
    }
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) {
      const V16 scale = Group::factors(factors, half + v);
      V16 minimum = zero();
      if (Group::kMinimum) minimum = Group::factors(factors + Group::kFactorBytes, half + v);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        V16 total = fma(scale, sums[r][v], load(totals[r][v]));
        if (Group::kMinimum) total = fma(minimum, splat(a.sums[r * a.sums_stride + g]), total);
        store(totals[r][v], total);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) x[r] += kGroup;
    at += Group::kBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) store(a.out + r * kTileColumns + (half + v) * 16, load(totals[r][v]));
}

template <int Rows, int Width, class Tile>
PF_INLINE void one_block(const BlockArgs& args, Float32Tile*) {
  plain_block<Rows, Width, Tile>(args);
}
template <int Rows, int Width, class Tile>
PF_INLINE void one_block(const BlockArgs& args, BFloat16Tile*) {
  plain_block<Rows, Width, Tile>(args);
}
template <int Rows, int Width, class Tile>
PF_INLINE void one_block(const BlockArgs& args, PairsTile*) {
  pairs_block<Rows, Width>(args);
}
template <int Rows, int Width, class Tile, bool HalfScales, bool Minimum>
PF_INLINE void one_block(const BlockArgs& args, Int8Group<HalfScales, Minimum>*) {
  grouped_block<Rows, Width, Tile>(args);
}

// Calls the block of the wanted height; the two halves of a tile one after the other where registers are short.
template <int Rows, class Tile>
void block_of(int64_t rows, BlockArgs& args) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      block_of<Rows - 1, Tile>(rows, args);
      return;
    }
  }
  Tile* kind = nullptr;
  if constexpr (Rows <= kWideRows) {
    args.half = 0;
    one_block<Rows, 2, Tile>(args, kind);
  } else {
    args.half = 0;
    one_block<Rows, 1, Tile>(args, kind);
    args.half = 1;
    one_block<Rows, 1, Tile>(args, kind);
  }
}

template <class Tile>
void linear_tile(const LinearArgs& a) {
  const int64_t blocks = (a.rows + kMaxRows - 1) / kMaxRows;
  // Each block brings its share of the next tile near, so that memory keeps working while rows are multiplied.
  const int64_t share = a.tile_bytes / blocks / 64 * 64;
  int64_t done = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t rows = (a.rows - done + blocks - b - 1) / (blocks - b);
    BlockArgs args{a.x + done * a.x_stride,
                   a.x_stride,
                   a.group_sums + (a.group_sums ? done * a.sums_stride : 0),
                   a.sums_stride,
                   a.tile,
                   a.k,
                   0,
                   a.out + done * kTileColumns,
                   a.prefetch ? a.prefetch + b * share : a.tile,
                   a.prefetch ? (64 + blocks - 1) / blocks : 0};
    block_of<kMaxRows, Tile>(rows, args);
    done += rows;
  }
}

void linear(const LinearArgs& a) {
  switch (a.storage) {
    case Storage::kFloat32: return linear_tile<Float32Tile>(a);
    case Storage::kBFloat16: return linear_tile<BFloat16Tile>(a);
    case Storage::kBFloat16Pairs: {
      [[maybe_unused]] const SubnormalsAreZero mode;
      return linear_tile<PairsTile>(a);
    }
    case Storage::kInt8Half: return linear_tile<Int8Group<true, false>>(a);
    case Storage::kInt8HalfMinimum: return linear_tile<Int8Group<true, true>>(a);
    case Storage::kInt8Float: return linear_tile<Int8Group<false, false>>(a);
    case Storage::kInt8FloatMinimum: return linear_tile<Int8Group<false, true>>(a);
  }
}
