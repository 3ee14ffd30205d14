// Small steps of sampling that NumPy pays for in calls: the best of a row, and the noise of a few tokens.
#pragma once
#include <cstdint>
#include <vector>

namespace pilotfish {

// Places of the `count` highest scores, ascending; ties by lowest place. Fewer where no more are above -infinity.
std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count);

// The same for a row of exactly `count` places, no more than `size`: where there are fewer, the lowest others fill it.
void fill_highest(const float* scores, int64_t size, int64_t count, int64_t* places);

// A penalty for tokens that came before. Its new value of a logit is a function of the old one and the token's count:
// x > 0 ? x / factor : x * factor where it `scales`, and x - factor * count - step where it does not.
struct CountPenalty {
  bool scales;
  float factor, step;
  const int64_t* ids;   // of the committed tokens, each once
  const float* counts;  // how often each came
  int64_t known;
  const int64_t* rows;            // of what was drafted on a row's path: the row,
  const int64_t* tokens;          // the token, once per row,
  const float* drafted_counts;    // and how often it came there, committed and drafted
  int64_t drafted;
};

// The `count` best places of a row of logits after these penalties, ascending, as `fill_highest`, and the logits there.
// Returns whether every changed logit is regular (below +inf, not NaN); ids are below `size`, `count` is at most `size`.
bool penalised_highest(const float* logits, int64_t size, int64_t row, const std::vector<CountPenalty>& penalties,
                       int64_t count, int64_t* places, float* scores);

// kept[i] = whether place i is among the first places, by `order` from the highest down (ties: the lowest place first),
// whose probabilities, added up in double precision, reach `mass`; the one that crosses it is. NaN comes last.
void reaching(const float* order, const float* probs, int64_t size, double mass, bool* kept);

// words[i]: output word tokens[i] % 4 of Philox-4x32-10 under `seed` at counter (tokens[i] / 4, positions[i], 0, 0).
void noise_words(uint64_t seed, const int64_t* positions, const int64_t* tokens, int64_t count, uint32_t* words);

}  // namespace pilotfish
