// Sixteen float lanes in plain C++: the meaning that the other instruction sets must reproduce bit for bit.

constexpr int kMaxRows = 4;   // rows of a register block
constexpr int kWideRows = 4;  // up to here a block covers a whole 32-column tile, beyond it half a tile at a time

struct V16 {
  float v[16];
};

template <class Function>
PF_INLINE V16 each(Function function) {
  V16 result;
  for (int i = 0; i < 16; ++i) result.v[i] = function(i);
  return result;
}
PF_INLINE float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
PF_INLINE V16 splat(float value) {
  return each([&](int) { return value; });
}
PF_INLINE V16 zero() { return splat(0.0f); }
PF_INLINE V16 load(const float* at) {
  return each([&](int i) { return at[i]; });
}
PF_INLINE void store(float* at, V16 x) {
  for (int i = 0; i < 16; ++i) at[i] = x.v[i];
}
PF_INLINE V16 fma(V16 x, V16 y, V16 z) {
  return each([&](int i) { return __builtin_fmaf(x.v[i], y.v[i], z.v[i]); });
}
// sum + w * *x.
PF_INLINE V16 fma_scalar(const float* x, V16 w, V16 sum) { return fma(splat(*x), w, sum); }
PF_INLINE V16 add(V16 x, V16 y) {
  return each([&](int i) { return x.v[i] + y.v[i]; });
}
PF_INLINE V16 sub(V16 x, V16 y) {
  return each([&](int i) { return x.v[i] - y.v[i]; });
}
PF_INLINE V16 mul(V16 x, V16 y) {
  return each([&](int i) { return x.v[i] * y.v[i]; });
}
PF_INLINE V16 div(V16 x, V16 y) {
  return each([&](int i) { return x.v[i] / y.v[i]; });
}
PF_INLINE V16 larger(V16 x, V16 y) {
  return each([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
}
PF_INLINE V16 smaller(V16 x, V16 y) {
  return each([&](int i) { return x.v[i] < y.v[i] ? x.v[i] : y.v[i]; });
}
PF_INLINE V16 zero_where_less(V16 x, V16 bound, V16 value) {
  return each([&](int i) { return x.v[i] < bound.v[i] ? 0.0f : value.v[i]; });
}
PF_INLINE V16 keep_lanes(V16 x, uint32_t bits, float other) {
  return each([&](int i) { return (bits >> i) & 1u ? x.v[i] : other; });
}
PF_INLINE V16 power_of_two(V16 whole) {
  // A NaN has no exponent to build; any value will do, since what it multiplies is a NaN too.
  return each([&](int i) {
    const bool usable = whole.v[i] > -127.0f && whole.v[i] < 128.0f;
    return float_of_bits(static_cast<uint32_t>((usable ? static_cast<int>(whole.v[i]) : 0) + 127) << 23);
  });
}
PF_INLINE float sum_lanes(V16 x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.v[i] = x.v[i] + x.v[i + half];
  return x.v[0];
}
PF_INLINE float max_lanes(V16 x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.v[i] = x.v[i] > x.v[i + half] ? x.v[i] : x.v[i + half];
  return x.v[0];
}
PF_INLINE V16 bfloat16_low(const uint32_t* at) {
  return each([&](int i) { return float_of_bits(at[i] << 16); });
}
PF_INLINE V16 bfloat16_high(const uint32_t* at) {
  return each([&](int i) { return float_of_bits(at[i] & 0xffff0000u); });
}

// Two bfloat16 in each of sixteen 32-bit lanes.
struct Pairs {
  uint32_t v[16];
};
PF_INLINE Pairs load_pairs(const uint32_t* at) {
  Pairs pairs;
  for (int i = 0; i < 16; ++i) pairs.v[i] = at[i];
  return pairs;
}
class SubnormalsAreZero {};  // plain C++ cannot tell the processor, so each sum is looked at
// a * b + sum, and zero where that is subnormal once it is rounded to 24 bits, whatever its exponent. To be rounded to the
// fewer bits of a subnormal number could have made it the smallest normal one; scaled, it keeps them.
PF_INLINE float fma_to_normal(float a, float b, float sum) {
  const float value = __builtin_fmaf(a, b, sum);
  if (!(__builtin_fabsf(value) <= 0x1p-126f)) return value;
  const float scaled = __builtin_fmaf(a * 0x1p24f, b, sum * 0x1p24f);
  return __builtin_fabsf(scaled) < 0x1p-102f ? __builtin_copysignf(0.0f, value) : value;
}
// sum + high half of w * high half of *x, then + low half * low half.
PF_INLINE V16 add_products(const uint32_t* x, Pairs w, V16 sum) {
  const float low = float_of_bits(*x << 16), high = float_of_bits(*x & 0xffff0000u);
  return each([&](int i) {
    const float first = fma_to_normal(high, float_of_bits(w.v[i] & 0xffff0000u), sum.v[i]);
    return fma_to_normal(low, float_of_bits(w.v[i] << 16), first);
  });
}

PF_INLINE V16 from_int8(const int8_t* at) {
  return each([&](int i) { return static_cast<float>(at[i]); });
}
PF_INLINE V16 from_float16(const uint16_t* at) {
  return each([&](int i) { return float16_to_float32(at[i]); });
}

// Sixteen unsigned 32-bit lanes.
struct U16 {
  uint32_t v[16];
};
PF_INLINE U16 count_from(uint32_t first) {
  U16 result;
  for (uint32_t i = 0; i < 16; ++i) result.v[i] = first + i;
  return result;
}
PF_INLINE U16 splat_u32(uint32_t value) {
  U16 result;
  for (int i = 0; i < 16; ++i) result.v[i] = value;
  return result;
}
PF_INLINE void store_u32(uint32_t* at, U16 x) {
  for (int i = 0; i < 16; ++i) at[i] = x.v[i];
}
PF_INLINE U16 exclusive_or(U16 x, U16 y, U16 z) {
  for (int i = 0; i < 16; ++i) x.v[i] ^= y.v[i] ^ z.v[i];
  return x;
}
// The 64-bit products of all lanes with one factor, in halves.
PF_INLINE void multiply_wide(U16 x, uint32_t factor, U16* high, U16* low) {
  for (int i = 0; i < 16; ++i) {
    const uint64_t product = static_cast<uint64_t>(x.v[i]) * factor;
    high->v[i] = static_cast<uint32_t>(product >> 32);
    low->v[i] = static_cast<uint32_t>(product);
  }
}
