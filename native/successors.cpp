#include "successors.h"

#include <cstring>
#include <limits>

namespace pilotfish {

void top_indices(const float* values, int64_t size, int64_t count, int64_t* indices) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  constexpr int64_t kLanes = 4, kBlock = 256;
  using Lanes = float __attribute__((vector_size(sizeof(float) * kLanes)));
  int64_t found = 0;
  float threshold = kLowest;  // the lowest value kept, once there are `count`
  const auto key = [&](int64_t index) { return values[index] == values[index] ? values[index] : kLowest; };
  const auto offer = [&](int64_t index) {
    const float value = key(index);
    if (found == count && !(value > threshold)) return;
    int64_t place = found < count ? found++ : count - 1;
    for (; place > 0 && key(indices[place - 1]) < value; --place) indices[place] = indices[place - 1];
    indices[place] = index;
    if (found == count) threshold = key(indices[count - 1]);
  };
  int64_t index = 0;
  // Most blocks hold nothing that high: one comparison per value, in lanes, passes them over.
  for (; index + kBlock <= size; index += kBlock) {
    Lanes highest[4];
    for (Lanes& lanes : highest) lanes = Lanes{} + kLowest;
    for (int64_t i = index; i < index + kBlock; i += 4 * kLanes)
      for (int64_t part = 0; part < 4; ++part) {
        Lanes lanes;
        std::memcpy(&lanes, values + i + part * kLanes, sizeof lanes);
        highest[part] = lanes > highest[part] ? lanes : highest[part];
      }
    bool any = found < count;
    for (const Lanes& lanes : highest)
      for (int64_t lane = 0; lane < kLanes; ++lane) any = any || lanes[lane] > threshold;
    if (any)
      for (int64_t i = index; i < index + kBlock; ++i) offer(i);
  }
  for (; index < size; ++index) offer(index);
}

}  // namespace pilotfish
