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
  const float* counts;  // by token, how often it was committed
  int64_t known;        // tokens from here on never were
};

// The `count` best places of a row of logits after these penalties, ascending, as `fill_highest`, and the logits there.
// What was drafted on the row's `path` counts too. Returns whether every changed logit is regular: below +inf, not NaN.
// Tokens of the path are below `size`; `known` and `count` are at most `size`.
bool penalised_highest(const float* logits, int64_t size, const std::vector<int64_t>& path,
                       const std::vector<CountPenalty>& penalties, int64_t count, int64_t* places, float* scores);

// scores[i] = (scores[i] - the highest + 0) / temperature; NaN everywhere if one is.
void temper(float* scores, int64_t size, float temperature);

// kept[i] = scores[i] where place i is among the first, from the highest score down (ties: the lowest place first),
// whose probabilities, added up in double precision, reach `mass`; the one that crosses it is. Otherwise -inf. NaN
// comes last. The probabilities are `weights` divided by their sum, both in single precision.
void keep_mass(const float* scores, const float* weights, int64_t size, double mass, float* kept);

// uniforms[i] = (word + 0.5) / 2^32, exactly, of output word tokens[i] % 4 of Philox-4x32-10 under `seed` at counter
// (tokens[i] / 4, position, 0, 0).
void noise_uniforms(uint64_t seed, int64_t position, const int64_t* tokens, int64_t count, double* uniforms);

// The first place of the highest scores[i] - logs[i], which is finite; -1 where all are -inf or one is NaN.
int64_t highest_difference(const float* scores, const double* logs, int64_t size);

}  // namespace pilotfish
