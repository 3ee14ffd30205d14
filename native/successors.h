// The highest values of a row, for greedy choices and for drafters that remember what the target thought likely.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pilotfish {

// Indices of the `count` highest of `size` values, highest first, of equals the lowest index. NaN counts as lowest.
// `count` is at most `size`. Reads the row once, or little of it where the maxima of its whole blocks of 32 are `known`: +inf
// for one with a NaN. Returns whether every value is below +inf and none is NaN.
bool top_indices(const float* values, int64_t size, int64_t count, int64_t* indices, const float* known = nullptr);

// shares[i] = the softmax of values[indices[i]] over these indices alone; the first is of the highest value.
void softmax_at(const float* values, const int64_t* indices, int64_t count, double* shares);

}  // namespace pilotfish
