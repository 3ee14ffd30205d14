// Small steps of sampling that NumPy pays for in calls: the best of a row, and the noise of a few tokens.
#pragma once
#include <cstdint>
#include <vector>

namespace pilotfish {

// Places of the `count` highest scores, ascending; ties by lowest place. Fewer where no more are above -infinity.
std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count);

// The same for a row of exactly `count` places, no more than `size`: where there are fewer, the lowest others fill it.
void fill_highest(const float* scores, int64_t size, int64_t count, int64_t* places);

// words[i]: output word tokens[i] % 4 of Philox-4x32-10 under `seed` at counter (tokens[i] / 4, positions[i], 0, 0).
void noise_words(uint64_t seed, const int64_t* positions, const int64_t* tokens, int64_t count, uint32_t* words);

}  // namespace pilotfish
