// Sixteen float lanes as two 256-bit registers. Included inside an anonymous namespace of a file built for AVX2 + FMA.

constexpr int kMaxRows = 6;   // rows of a register block
constexpr int kWideRows = 2;  // up to here a block covers a whole 32-column tile, beyond it half a tile at a time

struct V16 {
  __m256 a, b;
};

PF_INLINE V16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PF_INLINE V16 splat(float value) {
  __m256 all = _mm256_set1_ps(value);
  return {all, all};
}
PF_INLINE V16 load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
PF_INLINE void store(float* at, V16 x) {
  _mm256_storeu_ps(at, x.a);
  _mm256_storeu_ps(at + 8, x.b);
}
PF_INLINE V16 fma(V16 x, V16 y, V16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// sum + w * *x.
PF_INLINE V16 fma_scalar(const float* x, V16 w, V16 sum) { return fma(splat(*x), w, sum); }
PF_INLINE V16 add(V16 x, V16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
PF_INLINE V16 sub(V16 x, V16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
PF_INLINE V16 mul(V16 x, V16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
PF_INLINE V16 div(V16 x, V16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
PF_INLINE V16 larger(V16 x, V16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
PF_INLINE V16 smaller(V16 x, V16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
PF_INLINE V16 zero_where_less(V16 x, V16 bound, V16 value) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, bound.a, _CMP_NLT_UQ), value.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, bound.b, _CMP_NLT_UQ), value.b)};
}
PF_INLINE __m256 lane_mask(uint32_t bits) {
  __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits & 255u)), each);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each));
}
PF_INLINE V16 keep_lanes(V16 x, uint32_t bits, float other) {
  __m256 fill = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(fill, x.a, lane_mask(bits)), _mm256_blendv_ps(fill, x.b, lane_mask(bits >> 8))};
}
PF_INLINE __m256 power_of_two_half(__m256 whole) {
  __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
PF_INLINE V16 power_of_two(V16 whole) { return {power_of_two_half(whole.a), power_of_two_half(whole.b)}; }
PF_INLINE float sum_lanes(V16 x) {
  __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PF_INLINE float max_lanes(V16 x) {
  __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PF_INLINE __m256i load_words(const uint32_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
PF_INLINE V16 bfloat16_low(const uint32_t* at) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load_words(at), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(load_words(at + 8), 16))};
}
PF_INLINE V16 bfloat16_high(const uint32_t* at) {
  __m256i upper = _mm256_set1_epi32(-65536);
  return {_mm256_castsi256_ps(_mm256_and_si256(load_words(at), upper)),
          _mm256_castsi256_ps(_mm256_and_si256(load_words(at + 8), upper))};
}

// Two bfloat16 in each of sixteen 32-bit lanes.
struct Pairs {
  __m256i a, b;
};
PF_INLINE Pairs load_pairs(const uint32_t* at) { return {load_words(at), load_words(at + 8)}; }
// While it lives, subnormal operands and results of this thread's arithmetic are zero.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~SubnormalsAreZero() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
};
PF_INLINE __m256 low_half(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
PF_INLINE __m256 high_half(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}
// sum + high half of w * high half of *x, then + low half * low half.
PF_INLINE V16 add_products(const uint32_t* x, Pairs w, V16 sum) {
  const __m256i both = _mm256_set1_epi32(static_cast<int>(*x));
  const V16 second = {high_half(both), high_half(both)}, first = {low_half(both), low_half(both)};
  return fma(first, {low_half(w.a), low_half(w.b)}, fma(second, {high_half(w.a), high_half(w.b)}, sum));
}

PF_INLINE __m256 from_int8_half(const int8_t* at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
PF_INLINE V16 from_int8(const int8_t* at) { return {from_int8_half(at), from_int8_half(at + 8)}; }
PF_INLINE __m256 from_float16_half(const uint16_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
PF_INLINE V16 from_float16(const uint16_t* at) { return {from_float16_half(at), from_float16_half(at + 8)}; }

// Sixteen unsigned 32-bit lanes.
struct U16 {
  __m256i a, b;
};
PF_INLINE U16 splat_u32(uint32_t value) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(value));
  return {all, all};
}
PF_INLINE U16 count_from(uint32_t first) {
  const __m256i from = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)),
                                        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return {from, _mm256_add_epi32(from, _mm256_set1_epi32(8))};
}
PF_INLINE void store_u32(uint32_t* at, U16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + 8), x.b);
}
PF_INLINE U16 exclusive_or(U16 x, U16 y, U16 z) {
  return {_mm256_xor_si256(_mm256_xor_si256(x.a, y.a), z.a), _mm256_xor_si256(_mm256_xor_si256(x.b, y.b), z.b)};
}
PF_INLINE void multiply_wide_half(__m256i x, __m256i by, __m256i* high, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(x, by), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), by);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
// The 64-bit products of all lanes with one factor, in halves.
PF_INLINE void multiply_wide(U16 x, uint32_t factor, U16* high, U16* low) {
  const __m256i by = _mm256_set1_epi32(static_cast<int>(factor));
  multiply_wide_half(x.a, by, &high->a, &low->a);
  multiply_wide_half(x.b, by, &high->b, &low->b);
}
