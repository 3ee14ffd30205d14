#include "sampling.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "cpu.h"

namespace pilotfish {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kFewestGroups = 512, kGroupsPerToken = 8;

// The count-th highest maximum of disjoint groups: a lower bound of the count-th highest score, after one pass.
float lower_bound(const float* scores, int64_t size, int64_t count) {
  const int64_t groups = std::max(kFewestGroups, kGroupsPerToken * count), depth = size / groups;
  const int64_t width = depth < 2 ? size : groups;
  std::vector<float> best(static_cast<size_t>(width), kMinusInfinity);
  float* __restrict__ top = best.data();
  for (int64_t row = 0; row < std::max<int64_t>(depth, 1); ++row) {
    const float* own = scores + row * width;
    for (int64_t g = 0; g < width; ++g) top[g] = own[g] > top[g] ? own[g] : top[g];  // NaN is never taken
  }
  const auto place = best.begin() + (count - 1);
  std::nth_element(best.begin(), place, best.end(), std::greater<float>());
  return *place;
}

// The same from the maxima of blocks, and only few blocks reach it; to be used where there are `count` blocks.
float lower_bound(const std::vector<float>& maxima, int64_t count) {
  std::vector<float> best(static_cast<size_t>(count));
  std::partial_sort_copy(maxima.begin(), maxima.end(), best.begin(), best.end(), std::greater<float>());
  return best.back();
}

// The best `count` of the places offered, in any order: by value, of equals the lowest place; none of -infinity or NaN.
class Best {
 public:
  explicit Best(int64_t count) : count_(static_cast<size_t>(count)) { found_.reserve(kSpare * count_ + kSpare); }

  void offer(float value, int64_t place) {
    if (!(value >= threshold_) || value == kMinusInfinity) return;
    found_.emplace_back(value, place);
    if (found_.size() >= kSpare * count_ + kSpare) prune();
  }

  // A value that the best `count` reach.
  float threshold() {
    prune();
    return threshold_;
  }

  std::vector<int64_t> ascending() {
    prune();
    std::vector<int64_t> places;
    for (const auto& [value, place] : found_) places.push_back(place);
    std::sort(places.begin(), places.end());
    return places;
  }

 private:
  static constexpr size_t kSpare = 4;  // more than wanted are gathered before they are looked through

  void prune() {
    if (found_.size() < count_) return;
    const auto last = found_.begin() + static_cast<int64_t>(count_) - 1;
    std::nth_element(found_.begin(), last, found_.end(), [](const auto& a, const auto& b) {
      return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
    threshold_ = last->first;
    found_.resize(count_);
  }

  size_t count_;
  float threshold_ = kMinusInfinity;
  std::vector<std::pair<float, int64_t>> found_;
};

// The places of the `count` highest values, ascending, where value(place) is at most scores[place]: only places whose
// score is high enough to matter are asked for their value. `regular` tells whether every score is below +inf and none
// is NaN.
template <class Value>
std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count, Value value, bool* regular) {
  const int64_t blocks = std::max<int64_t>(size, 0) / kMaximumBlock, rest = blocks * kMaximumBlock;
  std::vector<float> maxima(static_cast<size_t>(blocks));
  *regular = kernels().block_maxima(scores, blocks, maxima.data());
  for (int64_t i = rest; i < size; ++i) *regular = *regular && scores[i] < -kMinusInfinity;
  if (count <= 0 || size <= 0) return {};
  Best best(std::min(count, size));
  // Offers what scores at least `low`, and less than `high` unless that is -infinity.
  const auto look = [&](float low, float high) {
    const auto offer = [&](int64_t place) {
      const float score = scores[place];
      if (score >= low && !(score >= high && high > kMinusInfinity)) best.offer(value(place), place);
    };
    for (int64_t block = 0; block < blocks; ++block) {
      if (!(maxima[static_cast<size_t>(block)] >= low)) continue;
      for (int64_t place = block * kMaximumBlock; place < (block + 1) * kMaximumBlock; ++place) offer(place);
    }
    for (int64_t place = rest; place < size; ++place) offer(place);
  };
  float bound = kMinusInfinity;
  if (count < size) bound = count <= blocks ? lower_bound(maxima, count) : lower_bound(scores, size, count);
  look(bound, kMinusInfinity);
  const float threshold = best.threshold();
  if (threshold < bound) look(threshold, bound);  // what scored lower may have kept more
  return best.ascending();
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

// In the order in which NumPy adds the numbers of a row, so that the sum has the same bits.
double sum(const float* values, int64_t size) {
  constexpr int64_t kLanes = 8, kTogether = 128;
  if (size > kTogether) {
    const int64_t half = size / 2 - size / 2 % kLanes;
    return sum(values, half) + sum(values + half, size - half);
  }
  double whole = 0.0;
  int64_t i = 0;
  if (size >= kLanes) {
    double lanes[kLanes] = {};
    for (; i + kLanes <= size; i += kLanes)
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
    whole = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  for (; i < size; ++i) whole += static_cast<double>(values[i]);
  return whole;
}

float penalised(const CountPenalty& penalty, float logit, float count) {
  if (penalty.scales) return logit > 0 ? logit / penalty.factor : logit * penalty.factor;
  return logit - penalty.factor * count - penalty.step;
}

bool lowers(const CountPenalty& penalty) {
  return penalty.scales ? penalty.factor >= 1 : penalty.factor >= 0 && penalty.step >= 0;
}

}  // namespace

std::vector<int64_t> highest_places(const float* scores, int64_t size, int64_t count) {
  bool regular;
  return highest_places(scores, size, count, [scores](int64_t place) { return scores[place]; }, &regular);
}

void fill_highest(const float* scores, int64_t size, int64_t count, int64_t* places) {
  fill_places(highest_places(scores, size, count), count, places);
}

bool penalised_highest(const float* logits, int64_t size, const std::vector<int64_t>& path,
                       const std::vector<CountPenalty>& penalties, int64_t count, int64_t* places, float* scores) {
  // A token's new logit comes from its old one and its whole count, wherever it came before.
  const auto changed = [&](int64_t token) {
    float logit = logits[token];
    const float drafted = static_cast<float>(std::count(path.begin(), path.end(), token));
    for (const CountPenalty& penalty : penalties) {
      const float whole = drafted + (token < penalty.known ? penalty.counts[token] : 0.0f);
      if (whole > 0) logit = penalised(penalty, logit, whole);
    }
    return logit;
  };
  bool regular;
  if (std::all_of(penalties.begin(), penalties.end(), lowers)) {
    fill_places(highest_places(logits, size, count, changed, &regular), count, places);
  } else {
    thread_local std::vector<float> copy;
    copy.assign(logits, logits + size);
    float* own = copy.data();
    for (const CountPenalty& penalty : penalties)
      for (int64_t token = 0; token < penalty.known; ++token)
        if (penalty.counts[token] > 0) own[token] = penalised(penalty, own[token], penalty.counts[token]);
    for (int64_t token : path) own[token] = changed(token);
    fill_places(highest_places(own, size, count, [own](int64_t token) { return own[token]; }, &regular), count, places);
  }
  for (int64_t i = 0; i < count; ++i) scores[i] = changed(places[i]);
  return regular;
}

void temper(float* scores, int64_t size, float temperature) {
  float top = scores[0];
  for (int64_t i = 1; i < size && top == top; ++i)
    if (!(scores[i] <= top)) top = scores[i];
  for (int64_t i = 0; i < size; ++i) scores[i] = (scores[i] - top + 0.0f) / temperature;  // -0 becomes 0
}

void keep_mass(const float* scores, const float* weights, int64_t size, double mass, float* kept) {
  const float whole = static_cast<float>(sum(weights, size));
  std::vector<int64_t> ranked(static_cast<size_t>(size));
  std::iota(ranked.begin(), ranked.end(), 0);
  std::stable_sort(ranked.begin(), ranked.end(), [scores](int64_t a, int64_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[a] && scores[b] != scores[b]);
  });
  int64_t count = 1;
  double reached = 0.0;
  for (int64_t place : ranked) {
    reached += static_cast<double>(weights[place] / whole);
    if (reached < mass) ++count;
  }
  for (int64_t rank = 0; rank < size; ++rank) {
    const int64_t place = ranked[static_cast<size_t>(rank)];
    kept[place] = rank < count ? scores[place] : kMinusInfinity;
  }
}

void noise_uniforms(uint64_t seed, int64_t position, const int64_t* tokens, int64_t count, double* uniforms) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t counter[4] = {static_cast<uint32_t>(tokens[i] / 4), static_cast<uint32_t>(position), 0, 0};
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
    uniforms[i] = (static_cast<double>(counter[tokens[i] % 4]) + 0.5) * 0x1p-32;
  }
}

int64_t highest_difference(const float* scores, const double* logs, int64_t size) {
  int64_t best = -1;
  double highest = kMinusInfinity;
  for (int64_t i = 0; i < size; ++i) {
    const double difference = static_cast<double>(scores[i]) - logs[i];
    if (difference != difference) return -1;
    if (difference > highest) {
      highest = difference;
      best = i;
    }
  }
  return best;
}

}  // namespace pilotfish
