// The highest values of a row, for drafters that remember what the target thought likely.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pilotfish {

// Indices of the `count` highest of `size` values, highest first, of equals the lowest index. NaN counts as lowest.
// `count` is at most `size`.
void top_indices(const float* values, int64_t size, int64_t count, int64_t* indices);

}  // namespace pilotfish
