#include "successors.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "cpu.h"

namespace pilotfish {

bool top_indices(const float* values, int64_t size, int64_t count, int64_t* indices, const float* known) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int64_t blocks = size / kMaximumBlock, rest = blocks * kMaximumBlock;
  std::vector<float> own;
  bool regular;
  if (known) {
    regular = std::all_of(known, known + blocks, [](float highest) { return highest < -kLowest; });
    if (!regular) known = nullptr;  // what else its block holds is not known
  }
  if (!known) {
    own.resize(static_cast<size_t>(blocks));
    regular = kernels().block_maxima(values, blocks, own.data());
  }
  const float* const maxima = known ? known : own.data();
  for (int64_t index = rest; index < size; ++index) regular = regular && values[index] < -kLowest;

  // The count-th highest maximum bounds the count-th highest value from below: few blocks hold anything that high.
  float bound = kLowest;
  if (count <= blocks) {
    std::vector<float> highest(static_cast<size_t>(count));
    std::partial_sort_copy(maxima, maxima + blocks, highest.begin(), highest.end(), std::greater<float>());
    bound = highest.back();
  }
  int64_t found = 0;
  float threshold = kLowest;  // the lowest value kept, once there are `count`
  const auto key = [&](int64_t index) { return values[index] == values[index] ? values[index] : kLowest; };
  const auto offer = [&](int64_t index) {
    const float value = key(index);
    if (value < bound || (found == count && !(value > threshold))) return;
    int64_t place = found < count ? found++ : count - 1;
    for (; place > 0 && key(indices[place - 1]) < value; --place) indices[place] = indices[place - 1];
    indices[place] = index;
    if (found == count) threshold = key(indices[count - 1]);
  };
  for (int64_t block = 0; block < blocks; ++block) {
    const float highest = maxima[block];
    if (highest < bound || (found == count && !(highest > threshold))) continue;
    for (int64_t index = block * kMaximumBlock; index < (block + 1) * kMaximumBlock; ++index) offer(index);
  }
  for (int64_t index = rest; index < size; ++index) offer(index);
  return regular;
}

void softmax_at(const float* values, const int64_t* indices, int64_t count, double* shares) {
  double whole = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    shares[i] = std::exp(static_cast<double>(values[indices[i]]) - static_cast<double>(values[indices[0]]));
    whole += shares[i];
  }
  for (int64_t i = 0; i < count; ++i) shares[i] /= whole;
}

}  // namespace pilotfish
