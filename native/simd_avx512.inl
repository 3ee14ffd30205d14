// Sixteen float lanes as one 512-bit register. Included inside an anonymous namespace of a file built for AVX-512.

constexpr int kMaxRows = 8;   // rows of a register block
constexpr int kWideRows = 8;  // up to here a block covers a whole 32-column tile, beyond it half a tile at a time

struct V16 {
  __m512 v;
};

PF_INLINE V16 zero() { return {_mm512_setzero_ps()}; }
PF_INLINE V16 splat(float value) { return {_mm512_set1_ps(value)}; }
PF_INLINE V16 load(const float* at) { return {_mm512_loadu_ps(at)}; }
PF_INLINE void store(float* at, V16 a) { _mm512_storeu_ps(at, a.v); }
PF_INLINE V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// sum + w * *x. On Zen 4 a broadcast into a register competes with multiply-adds, one inside their memory operand does
// not; compilers join equal broadcasts into a register, hence the assembly.
PF_INLINE V16 fma_scalar(const float* x, V16 w, V16 sum) {
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(w.v), "m"(*x));
  return sum;
}
PF_INLINE V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PF_INLINE V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PF_INLINE V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PF_INLINE V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a > b ? a : b, lane by lane, so that every instruction set treats NaN and signed zeros alike.
PF_INLINE V16 larger(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
PF_INLINE V16 smaller(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
PF_INLINE V16 zero_where_less(V16 a, V16 bound, V16 value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, bound.v, _CMP_NLT_UQ), value.v)};
}
PF_INLINE V16 keep_lanes(V16 a, uint32_t bits, float other) {
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), static_cast<__mmask16>(bits), a.v)};
}
PF_INLINE V16 power_of_two(V16 whole) {
  __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(whole.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
// Lane i meets lane i + 8, then + 4, + 2, + 1.
PF_INLINE float sum_lanes(V16 a) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PF_INLINE float max_lanes(V16 a) {
  __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PF_INLINE V16 bfloat16_low(const uint32_t* at) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(at), 16))};
}
PF_INLINE V16 bfloat16_high(const uint32_t* at) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi32(-65536)))};
}

// Two bfloat16 in each of sixteen 32-bit lanes.
struct Pairs {
  __m512i v;
};
PF_INLINE Pairs load_pairs(const uint32_t* at) { return {_mm512_loadu_si512(at)}; }
#ifdef PF_DOT_BFLOAT16
class SubnormalsAreZero {};  // the instruction itself is so
// sum + high half of w * high half of *x, then + low half * low half. The operand in memory as in fma_scalar.
PF_INLINE V16 add_products(const uint32_t* x, Pairs w, V16 sum) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(w.v), "m"(*x));
  return sum;
}
#else
// While it lives, subnormal operands and results of this thread's arithmetic are zero.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~SubnormalsAreZero() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
};
PF_INLINE __m512 low_half(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
PF_INLINE __m512 high_half(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}
// sum + high half of w * high half of *x, then + low half * low half.
PF_INLINE V16 add_products(const uint32_t* x, Pairs w, V16 sum) {
  const __m512i both = _mm512_set1_epi32(static_cast<int>(*x));
  const __m512 first = _mm512_fmadd_ps(high_half(both), high_half(w.v), sum.v);
  return {_mm512_fmadd_ps(low_half(both), low_half(w.v), first)};
}
#endif

PF_INLINE V16 from_int8(const int8_t* at) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
PF_INLINE V16 from_float16(const uint16_t* at) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)))};
}

// Sixteen unsigned 32-bit lanes.
struct U16 {
  __m512i v;
};
PF_INLINE U16 count_from(uint32_t first) {
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), steps)};
}
PF_INLINE U16 splat_u32(uint32_t value) { return {_mm512_set1_epi32(static_cast<int>(value))}; }
PF_INLINE void store_u32(uint32_t* at, U16 x) { _mm512_storeu_si512(at, x.v); }
PF_INLINE U16 exclusive_or(U16 x, U16 y, U16 z) { return {_mm512_xor_si512(_mm512_xor_si512(x.v, y.v), z.v)}; }
// The 64-bit products of all lanes with one factor, in halves.
PF_INLINE void multiply_wide(U16 x, uint32_t factor, U16* high, U16* low) {
  const __m512i by = _mm512_set1_epi32(static_cast<int>(factor));
  const __m512i even = _mm512_mul_epu32(x.v, by), odd = _mm512_mul_epu32(_mm512_srli_epi64(x.v, 32), by);
  high->v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  low->v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
