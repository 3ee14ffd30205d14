// What sampling reads whole rows for: the maxima of their blocks, and argmax of score + Gumbel noise. The noise of a token
// is a pure function of (seed, position, token): word token % 4 of Philox-4x32-10 (Salmon et al. 2011,
// https://doi.org/10.1145/2063384.2063405) at counter (token / 4, position, 0, 0).

constexpr int kCounters = 16, kBatch = 4 * kCounters;  // tokens whose noise is made together
constexpr float kLargestNoise = 22.95f;                // above -log(-log(1 - 2^-33)) = 22.87

// words[w][i] = word w of the counter first + i.
void philox_batch(uint32_t first, uint32_t position, uint64_t seed, uint32_t words[4][kCounters]) {
  U16 a = count_from(first), b = splat_u32(position), c = splat_u32(0), d = c;
  uint32_t key_low = static_cast<uint32_t>(seed), key_high = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U16 left_high, left_low, right_high, right_low;
    multiply_wide(a, 0xD2511F53u, &left_high, &left_low);
    multiply_wide(c, 0xCD9E8D57u, &right_high, &right_low);
    a = exclusive_or(right_high, b, splat_u32(key_low));
    b = right_low;
    c = exclusive_or(left_high, d, splat_u32(key_high));
    d = left_low;
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  store_u32(words[0], a);
  store_u32(words[1], b);
  store_u32(words[2], c);
  store_u32(words[3], d);
}

double noisy_score(float score, uint32_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return static_cast<double>(score) - __builtin_log(-__builtin_log(uniform));
}

bool block_maxima(const float* values, int64_t blocks, float* maxima) {
  V16 irregular = zero();
  const V16 one = splat(1.0f), infinity = splat(-kMinusInfinity);
  const auto note = [&](V16 x) {
    irregular = larger(zero_where_less(x, infinity, one), irregular);
    return x;
  };
  for (int64_t block = 0; block < blocks; ++block) {
    const float* at = values + block * kMaximumBlock;
    V16 a = splat(kMinusInfinity), b = a;  // a NaN never replaces what is there
    a = larger(note(load(at)), a);
    b = larger(note(load(at + 16)), b);
    maxima[block] = max_lanes(larger(a, b));
  }
  return max_lanes(irregular) == 0.0f;
}

int64_t gumbel_argmax(const float* scores, int64_t vocabulary, uint64_t seed, uint32_t position, float temperature) {
  const bool tempered = temperature > 0.0f;
  V16 top = splat(kMinusInfinity), irregular = zero();
  const V16 one = splat(1.0f), infinity = splat(-kMinusInfinity);
  int64_t t = 0;
  for (; t + 16 <= vocabulary; t += 16) {
    const V16 x = load(scores + t);
    irregular = larger(zero_where_less(x, infinity, one), irregular);
    top = larger(x, top);
  }
  float highest = max_lanes(top);
  bool regular = max_lanes(irregular) == 0.0f;
  for (; t < vocabulary; ++t) {
    regular = regular && scores[t] < -kMinusInfinity;
    highest = scores[t] > highest ? scores[t] : highest;
  }
  if (!(highest > kMinusInfinity) || (tempered && !regular)) return -1;
  // As the temperature step has it: the highest first, a zero of either sign positive.
  const V16 shift = splat(tempered ? highest : 0.0f), divisor = splat(tempered ? temperature : 1.0f);
  const auto read = [&](const float* at) {
    const V16 x = load(at);
    return tempered ? div(add(sub(x, shift), zero()), divisor) : x;
  };

  uint32_t words[4][kCounters];
  int64_t best = 0;
  while (scores[best] != highest) ++best;
  philox_batch(static_cast<uint32_t>(best / 4), position, seed, words);
  double best_score = noisy_score(tempered ? 0.0f : highest, words[best % 4][0]);

  alignas(64) float batch[kBatch], chance[kBatch], own[kBatch];
  for (int64_t start = 0; start < vocabulary; start += kBatch) {
    const int64_t count = vocabulary - start < kBatch ? vocabulary - start : kBatch;
    const float* here = scores + start;
    if (count < kBatch) {
      for (int64_t i = 0; i < kBatch; ++i) batch[i] = i < count ? here[i] : kMinusInfinity;
      here = batch;
    }
    const V16 s0 = read(here), s1 = read(here + 16), s2 = read(here + 32), s3 = read(here + 48);
    const float bar = static_cast<float>(best_score);
    if (max_lanes(larger(larger(s0, s1), larger(s2, s3))) + kLargestNoise < bar - 0.001f) continue;
    // -log(u) >= 1 - u, hence noise <= -log(1 - u): a token can only win where 1 - u < e^(score - best). The margin
    // covers the rounding of float32.
    const V16 best_lanes = splat(bar - 0.001f - 1e-6f * __builtin_fabsf(bar));
    store(chance, exponential(sub(s0, best_lanes)));
    store(chance + 16, exponential(sub(s1, best_lanes)));
    store(chance + 32, exponential(sub(s2, best_lanes)));
    store(chance + 48, exponential(sub(s3, best_lanes)));
    philox_batch(static_cast<uint32_t>(start / 4), position, seed, words);
    uint32_t any = 0;
    uint32_t possible[kBatch];
    for (int i = 0; i < kCounters; ++i) {
      for (int w = 0; w < 4; ++w) {
        // 1 - u in units of 2^-32, from below.
        const float rest = static_cast<float>(static_cast<int32_t>(~words[w][i] >> 1)) * 4.6566128e-10f;
        possible[4 * i + w] = rest <= chance[4 * i + w] ? 1u : 0u;
        any |= possible[4 * i + w];
      }
    }
    if (!any) continue;
    store(own, s0);
    store(own + 16, s1);
    store(own + 32, s2);
    store(own + 48, s3);
    for (int64_t i = 0; i < count; ++i) {
      if (!possible[i] || !(own[i] > kMinusInfinity)) continue;
      const double score = noisy_score(own[i], words[i % 4][i / 4]);
      const int64_t token = start + i;
      if (score > best_score || (score == best_score && token < best)) {
        best_score = score;
        best = token;
      }
    }
  }
  return best;
}
