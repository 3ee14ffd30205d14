// Sixteen float lanes as four 128-bit registers. Included inside an anonymous namespace of a file built for AArch64.

constexpr int kMaxRows = 6;   // rows of a register block
constexpr int kWideRows = 2;  // up to here a block covers a whole 32-column tile, beyond it half a tile at a time

struct V16 {
  float32x4_t v[4];
};

template <class Function>
PF_INLINE V16 each(Function function) {
  return {{function(0), function(1), function(2), function(3)}};
}
PF_INLINE V16 splat(float value) {
  return each([&](int) { return vdupq_n_f32(value); });
}
PF_INLINE V16 zero() { return splat(0.0f); }
PF_INLINE V16 load(const float* at) {
  return each([&](int i) { return vld1q_f32(at + 4 * i); });
}
PF_INLINE void store(float* at, V16 x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(at + 4 * i, x.v[i]);
}
PF_INLINE V16 fma(V16 x, V16 y, V16 z) {
  return each([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
}
// sum + w * *x.
PF_INLINE V16 fma_scalar(const float* x, V16 w, V16 sum) { return fma(splat(*x), w, sum); }
PF_INLINE V16 add(V16 x, V16 y) {
  return each([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
}
PF_INLINE V16 sub(V16 x, V16 y) {
  return each([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
}
PF_INLINE V16 mul(V16 x, V16 y) {
  return each([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
}
PF_INLINE V16 div(V16 x, V16 y) {
  return each([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
}
// Compare and select: the maximum instruction of this machine treats NaN and signed zeros in its own way.
PF_INLINE float32x4_t larger4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
PF_INLINE V16 larger(V16 x, V16 y) {
  return each([&](int i) { return larger4(x.v[i], y.v[i]); });
}
PF_INLINE V16 smaller(V16 x, V16 y) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
PF_INLINE V16 zero_where_less(V16 x, V16 bound, V16 value) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], bound.v[i]), vdupq_n_f32(0.0f), value.v[i]); });
}
PF_INLINE V16 keep_lanes(V16 x, uint32_t bits, float other) {
  const uint32_t weights[4] = {1, 2, 4, 8};
  const uint32x4_t bit = vld1q_u32(weights);
  return each([&](int i) {
    return vbslq_f32(vtstq_u32(vdupq_n_u32(bits >> (4 * i)), bit), x.v[i], vdupq_n_f32(other));
  });
}
PF_INLINE V16 power_of_two(V16 whole) {
  return each([&](int i) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(whole.v[i]), vdupq_n_s32(127)), 23));
  });
}
PF_INLINE float sum_lanes(V16 x) {
  float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
PF_INLINE float max_lanes(V16 x) {
  float lanes[4];
  vst1q_f32(lanes, larger4(larger4(x.v[0], x.v[2]), larger4(x.v[1], x.v[3])));
  const float even = lanes[0] > lanes[2] ? lanes[0] : lanes[2];
  const float odd = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
  return even > odd ? even : odd;
}
PF_INLINE V16 bfloat16_low(const uint32_t* at) {
  return each([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(at + 4 * i), 16)); });
}
PF_INLINE V16 bfloat16_high(const uint32_t* at) {
  return each(
      [&](int i) { return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(at + 4 * i), vdupq_n_u32(0xffff0000u))); });
}

// Two bfloat16 in each of sixteen 32-bit lanes.
struct Pairs {
  uint32x4_t v[4];
};
PF_INLINE Pairs load_pairs(const uint32_t* at) {
  return {{vld1q_u32(at), vld1q_u32(at + 4), vld1q_u32(at + 8), vld1q_u32(at + 12)}};
}
// While it lives, subnormal operands and results of this thread's arithmetic are zero. This processor looks at a result before
// it is rounded, others afterwards: a sum less than 2^-151 below 2^-126 is zero here and 2^-126 there.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(before_ | (uint64_t{1} << 24));
  }
  ~SubnormalsAreZero() { set(before_); }

 private:
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
  uint64_t before_;
};
PF_INLINE float32x4_t low_half(uint32x4_t pairs) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); }
PF_INLINE float32x4_t high_half(uint32x4_t pairs) {
  return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}
// sum + high half of w * high half of *x, then + low half * low half.
PF_INLINE V16 add_products(const uint32_t* x, Pairs w, V16 sum) {
  const uint32x4_t both = vdupq_n_u32(*x);
  const float32x4_t low = low_half(both), high = high_half(both);
  return each([&](int i) {
    return vfmaq_f32(vfmaq_f32(sum.v[i], high, high_half(w.v[i])), low, low_half(w.v[i]));
  });
}

PF_INLINE V16 from_int8(const int8_t* at) {
  const int8x16_t bytes = vld1q_s8(at);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
PF_INLINE V16 from_float16(const uint16_t* at) {
  return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at + 4 * i))); });
}

// Sixteen unsigned 32-bit lanes.
struct U16 {
  uint32x4_t v[4];
};
PF_INLINE U16 splat_u32(uint32_t value) {
  const uint32x4_t all = vdupq_n_u32(value);
  return {{all, all, all, all}};
}
PF_INLINE U16 count_from(uint32_t first) {
  const uint32_t steps[4] = {0, 1, 2, 3};
  U16 result;
  for (uint32_t i = 0; i < 4; ++i) result.v[i] = vaddq_u32(vdupq_n_u32(first + 4 * i), vld1q_u32(steps));
  return result;
}
PF_INLINE void store_u32(uint32_t* at, U16 x) {
  for (int i = 0; i < 4; ++i) vst1q_u32(at + 4 * i, x.v[i]);
}
PF_INLINE U16 exclusive_or(U16 x, U16 y, U16 z) {
  for (int i = 0; i < 4; ++i) x.v[i] = veorq_u32(veorq_u32(x.v[i], y.v[i]), z.v[i]);
  return x;
}
// The 64-bit products of all lanes with one factor, in halves.
PF_INLINE void multiply_wide(U16 x, uint32_t factor, U16* high, U16* low) {
  const uint32x2_t by = vdup_n_u32(factor);
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x.v[i]), by));
    const uint32x4_t second = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(x.v[i]), by));
    low->v[i] = vuzp1q_u32(first, second);
    high->v[i] = vuzp2q_u32(first, second);
  }
}
