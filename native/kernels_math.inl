// Exponential, RMS norm, gated activations and group sums on sixteen lanes.

constexpr float kMinusInfinity = -__builtin_inff();

// e^x with a Taylor polynomial of degree 7 after range reduction; relative error below 2e-7. Exactly 1 at 0, exactly 0
// below -87 (where the result would soon be subnormal), and held at e^88 above.
PF_INLINE V16 exponential(V16 x) {
  const V16 low = splat(-87.0f), magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  V16 bounded = smaller(larger(x, low), splat(88.0f));
  V16 whole = sub(fma(bounded, splat(1.44269504088896341f), magic), magic);
  V16 rest = fma(whole, splat(-0.693145751953125f), bounded);
  rest = fma(whole, splat(-1.42860682030941723e-6f), rest);
  V16 sum = splat(1.0f / 5040.0f);
  sum = fma(sum, rest, splat(1.0f / 720.0f));
  sum = fma(sum, rest, splat(1.0f / 120.0f));
  sum = fma(sum, rest, splat(1.0f / 24.0f));
  sum = fma(sum, rest, splat(1.0f / 6.0f));
  sum = fma(sum, rest, splat(0.5f));
  sum = fma(sum, rest, splat(1.0f));
  sum = fma(sum, rest, splat(1.0f));
  return zero_where_less(x, low, mul(sum, power_of_two(whole)));
}

void rms_norm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  V16 squares = zero();
  for (int64_t i = 0; i < n; i += 16) {
    V16 part = load(x + i);
    squares = fma(part, part, squares);
  }
  const float mean = sum_lanes(squares) / static_cast<float>(n);
  const V16 inverse = splat(1.0f / __builtin_sqrtf(mean + epsilon));
  for (int64_t i = 0; i < n; i += 16) store(out + i, mul(mul(load(x + i), inverse), load(weight + i)));
}

// Both activations are x / (1 + e^-z): z = x for SiLU; for the tanh form of GELU, z = 2 sqrt(2/pi) (x + 0.044715 x^3).
void gate(Activation activation, const float* tile, int64_t rows, float* out, int64_t out_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    V16 x = load(tile + row * kTileColumns), z = x;
    if (activation == Activation::kGeluTanh) {
      V16 cubic = fma(mul(mul(x, x), x), splat(0.044715f), x);
      z = mul(cubic, splat(1.5957691216057308f));
    }
    V16 bottom = add(splat(1.0f), exponential(sub(zero(), z)));
    store(out + row * out_stride, mul(div(x, bottom), load(tile + row * kTileColumns + 16)));
  }
}

void group_sums(const float* x, int64_t groups, float* sums) {
  for (int64_t g = 0; g < groups; ++g) sums[g] = sum_lanes(add(load(x + g * kGroup), load(x + g * kGroup + 16)));
}

using Words = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

// To nearest, ties to even; numbers that bfloat16 could hold only as subnormal ones become zero, a NaN stays one.
PF_INLINE void round_sixteen(const float* x, uint16_t* out) {
  Words bits;
  __builtin_memcpy(&bits, x, sizeof bits);
  const Words upper = bits >> 16, magnitude = bits & 0x7fffffffu;
  Words rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
  rounded = magnitude < 0x00800000u ? upper & 0x8000u : rounded;
  rounded = magnitude > 0x7f800000u ? upper | 0x40u : rounded;
  const Halves halves = __builtin_convertvector(rounded, Halves);
  __builtin_memcpy(out, &halves, sizeof halves);
}

void round_bfloat16(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) round_sixteen(x + i, out + i);  // read before written: `out` may begin where x does
  if (i == n) return;
  float from[16] = {};
  uint16_t to[16];
  const size_t count = static_cast<size_t>(n - i);
  __builtin_memcpy(from, x + i, count * sizeof(float));
  round_sixteen(from, to);
  __builtin_memcpy(out + i, to, count * sizeof(uint16_t));
}

double multiply_add_burst(int64_t repeats, float* sink) {
  constexpr int kChains = kMaxRows;
  V16 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = splat(static_cast<float>(c));
  const V16 factor = splat(sink[0]), term = splat(sink[1]);
  for (int64_t i = 0; i < repeats; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < kChains; ++c) chains[c] = fma(chains[c], factor, term);
  }
  for (int c = 1; c < kChains; ++c) chains[0] = add(chains[0], chains[c]);
  sink[2] = sum_lanes(chains[0]);
  return 2.0 * 16 * kChains * static_cast<double>(repeats);
}

double multiply_pairs_burst(int64_t repeats, float* sink) {
  constexpr int kChains = kMaxRows;
  V16 chains[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) chains[c] = splat(static_cast<float>(c));
  const uint32_t small = 0x38003800u;  // two of 2^-15: the sums stay finite
  uint32_t words[16];
  for (uint32_t& word : words) word = small;
  const Pairs factors = load_pairs(words);
  for (int64_t i = 0; i < repeats; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) chains[c] = add_products(&small, factors, chains[c]);
  }
#pragma GCC unroll 16
  for (int c = 1; c < kChains; ++c) chains[0] = add(chains[0], chains[c]);
  sink[2] = sum_lanes(chains[0]);
  return 4.0 * 16 * kChains * static_cast<double>(repeats);
}

float read_burst(const uint8_t* memory, int64_t bytes) {
  V16 sums[4] = {zero(), zero(), zero(), zero()};
  for (int64_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __builtin_prefetch(memory + at + i * 64 + 16384, 0, 2);  // as far ahead as a weight tile
      sums[i] = add(sums[i], load(reinterpret_cast<const float*>(memory + at) + i * 16));
    }
  }
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}
