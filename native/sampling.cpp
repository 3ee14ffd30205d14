#include "sampling.h"

#include <algorithm>
#include <limits>

namespace pilotfish {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kFewestGroups = 512, kGroupsPerToken = 8;

// The count-th highest maximum of disjoint groups: a lower bound of the count-th highest score, after one pass.
float lower_bound(const float* scores, int64_t size, int64_t count) {
  const int64_t groups = std::max(kFewestGroups, kGroupsPerToken * count), depth = size / groups;
  std::vector<float> best;
  if (depth < 2) {
    best.assign(scores, scores + size);
  } else {
    best.assign(scores, scores + groups);
    float* __restrict__ top = best.data();
    for (int64_t row = 1; row < depth; ++row) {
      const float* own = scores + row * groups;
      for (int64_t g = 0; g < groups; ++g) top[g] = own[g] > top[g] ? own[g] : top[g];
    }
  }
  const auto place = best.begin() + (count - 1);
  std::nth_element(best.begin(), place, best.end(), [](float a, float b) { return a > b; });
  return *place;
}

}  // namespace

std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count) {
  std::vector<int64_t> places;
  if (count <= 0 || size <= 0) return places;
  const float bound = count < size ? lower_bound(scores, size, count) : kMinusInfinity;
  constexpr int64_t kBlock = 16;
  int64_t start = 0;
  for (; start + kBlock <= size; start += kBlock) {
    const float* own = scores + start;
    uint32_t any = 0;
    for (int64_t i = 0; i < kBlock; ++i) any |= own[i] >= bound ? 1u : 0u;
    if (!any) continue;
    for (int64_t i = 0; i < kBlock; ++i)
      if (own[i] >= bound && own[i] > kMinusInfinity) places.push_back(start + i);
  }
  for (; start < size; ++start)
    if (scores[start] >= bound && scores[start] > kMinusInfinity) places.push_back(start);
  if (static_cast<int64_t>(places.size()) > count) {
    const auto better = [scores](int64_t a, int64_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    std::nth_element(places.begin(), places.begin() + count, places.end(), better);
    places.resize(static_cast<size_t>(count));
    std::sort(places.begin(), places.end());
  }
  return places;
}

void fill_highest(const float* scores, int64_t size, int64_t count, int64_t* places) {
  std::vector<int64_t> found = highest_places(scores, size, count);
  const size_t real = found.size();
  for (int64_t other = 0; static_cast<int64_t>(found.size()) < count; ++other)
    if (!std::binary_search(found.begin(), found.begin() + static_cast<int64_t>(real), other)) found.push_back(other);
  std::sort(found.begin() + static_cast<int64_t>(real), found.end());
  std::inplace_merge(found.begin(), found.begin() + static_cast<int64_t>(real), found.end());
  std::copy(found.begin(), found.end(), places);
}

void noise_words(uint64_t seed, const int64_t* positions, const int64_t* tokens, int64_t count, uint32_t* words) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t counter[4] = {static_cast<uint32_t>(tokens[i] / 4), static_cast<uint32_t>(positions[i]), 0, 0};
    uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t left = static_cast<uint64_t>(counter[0]) * 0xD2511F53u;
      const uint64_t right = static_cast<uint64_t>(counter[2]) * 0xCD9E8D57u;
      counter[0] = static_cast<uint32_t>(right >> 32) ^ counter[1] ^ low;
      counter[1] = static_cast<uint32_t>(right);
      counter[2] = static_cast<uint32_t>(left >> 32) ^ counter[3] ^ high;
      counter[3] = static_cast<uint32_t>(left);
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    words[i] = counter[tokens[i] % 4];
  }
}

}  // namespace pilotfish
