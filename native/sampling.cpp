#include "sampling.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "cpu.h"

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

// The same from the maxima of blocks, and only few blocks reach it; to be used where there are `count` blocks.
float lower_bound(const std::vector<float>& maxima, int64_t count) {
  std::vector<float> best(static_cast<size_t>(count));
  std::partial_sort_copy(maxima.begin(), maxima.end(), best.begin(), best.end(), std::greater<float>());
  return best.back();
}

// `regular` tells whether every score is below +inf and none is NaN.
std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count, bool* regular) {
  std::vector<int64_t> places;
  const int64_t blocks = std::max<int64_t>(size, 0) / kMaximumBlock, rest = blocks * kMaximumBlock;
  std::vector<float> maxima(static_cast<size_t>(blocks));
  *regular = kernels().block_maxima(scores, blocks, maxima.data());
  for (int64_t i = rest; i < size; ++i) *regular = *regular && scores[i] < -kMinusInfinity;
  if (count <= 0 || size <= 0) return places;
  float bound = kMinusInfinity;
  if (count < size) bound = count <= blocks ? lower_bound(maxima, count) : lower_bound(scores, size, count);
  const auto take = [&](int64_t place) {
    if (scores[place] >= bound && scores[place] > kMinusInfinity) places.push_back(place);
  };
  for (int64_t block = 0; block < blocks; ++block) {
    if (!(maxima[static_cast<size_t>(block)] >= bound)) continue;
    for (int64_t place = block * kMaximumBlock; place < (block + 1) * kMaximumBlock; ++place) take(place);
  }
  for (int64_t place = rest; place < size; ++place) take(place);
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

// A row of exactly `count` places: where fewer were found, the lowest others fill it.
void fill_places(std::vector<int64_t> found, int64_t count, int64_t* places) {
  const size_t real = found.size();
  for (int64_t other = 0; static_cast<int64_t>(found.size()) < count; ++other)
    if (!std::binary_search(found.begin(), found.begin() + static_cast<int64_t>(real), other)) found.push_back(other);
  std::sort(found.begin() + static_cast<int64_t>(real), found.end());
  std::inplace_merge(found.begin(), found.begin() + static_cast<int64_t>(real), found.end());
  std::copy(found.begin(), found.end(), places);
}

float penalised(const CountPenalty& penalty, float logit, float count) {
  if (penalty.scales) return logit > 0 ? logit / penalty.factor : logit * penalty.factor;
  return logit - penalty.factor * count - penalty.step;
}

}  // namespace

std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count) {
  bool regular;
  return highest_places(scores, size, count, &regular);
}

void fill_highest(const float* scores, int64_t size, int64_t count, int64_t* places) {
  fill_places(highest_places(scores, size, count), count, places);
}

bool penalised_highest(const float* logits, int64_t size, int64_t row, const std::vector<CountPenalty>& penalties,
                       int64_t count, int64_t* places, float* scores) {
  // A copy that stays in this core's cache: thousands of penalised tokens are then changed there, and nowhere else.
  thread_local std::vector<float> copy;
  copy.assign(logits, logits + size);
  float* own = copy.data();
  std::vector<std::pair<int64_t, float>> drafted;
  for (const CountPenalty& penalty : penalties) {
    // A drafted token's new logit comes from its old one and its whole count, whether it was committed before or not.
    drafted.clear();
    for (int64_t i = 0; i < penalty.drafted; ++i) {
      if (penalty.rows[i] != row) continue;
      const int64_t token = penalty.tokens[i];
      drafted.emplace_back(token, penalised(penalty, own[token], penalty.drafted_counts[i]));
    }
    for (int64_t i = 0; i < penalty.known; ++i)
      own[penalty.ids[i]] = penalised(penalty, own[penalty.ids[i]], penalty.counts[i]);
    for (const auto& [token, value] : drafted) own[token] = value;
  }
  bool regular;
  fill_places(highest_places(own, size, count, &regular), count, places);
  for (int64_t i = 0; i < count; ++i) scores[i] = own[places[i]];
  return regular;
}

void reaching(const float* order, const float* probs, int64_t size, double mass, bool* kept) {
  std::vector<int64_t> ranked(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) ranked[static_cast<size_t>(i)] = i;
  std::stable_sort(ranked.begin(), ranked.end(), [order](int64_t a, int64_t b) {
    return order[a] > order[b] || (order[a] == order[a] && order[b] != order[b]);
  });
  int64_t count = 1;
  double sum = 0.0;
  for (int64_t place : ranked) {
    sum += static_cast<double>(probs[place]);
    if (sum < mass) ++count;
  }
  for (int64_t rank = 0; rank < size; ++rank) kept[ranked[static_cast<size_t>(rank)]] = rank < count;
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
