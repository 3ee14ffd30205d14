// What may come next, looked up and not computed: counts of the text itself, the target's favourites of earlier rounds,
// and a fixed table, weighed against each other into one probability per token, and the tree that these grow.
//
// Owns the three stores and the arithmetic. drafters/lookup_index.py is the same in Python, and says what each number
// means; drafters/lookup_weights.py has the weights.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lookup_table.h"

namespace pilotfish {

constexpr int kTextOrders = 7;      // lengths of contexts counted in the text
constexpr int kTextLengths[kTextOrders] = {1, 2, 3, 4, 6, 9, 14};
constexpr int kTextChildren = 12;   // successors remembered per context, the latest
constexpr int kTableOrders = 4;     // longest context with weights of its own
constexpr int kLookupFactors = 5 * kTextOrders + 1 + 3 + 3 + 3 * kTableOrders * kSeenClasses;
constexpr int kUnits = 16, kRaising = 8;  // of the network that weighs them: a linear one, those that raise, those that lower
constexpr int kLookupWeights = kLookupFactors * kUnits;
constexpr int kNoiseWeights = 5;
constexpr int kLongestContext = 14;

struct LookupTree {
  std::vector<int32_t> tokens, parents;  // parent -1: the context
  std::vector<double> confidence;        // estimated probability given the parent
};

// The target's noise at the positions of a draft: what it will add to its scores there is known beforehand.
struct LookupNoise {
  uint64_t seed = 0;
  int64_t position = 0;      // of the token after the context
  double temperature = 0.0;  // 0: the choice is without noise
};

struct LookupLimits {
  int64_t depth = 1, nodes = 1;
  int64_t vocabulary = 0;  // ids from here on are not proposed
  double least = 0.0;      // paths less likely are not proposed
  bool branching = true;
};

class LookupIndex {
 public:
  LookupIndex(std::vector<double> weights, std::vector<double> noise_weights, const LookupTable* table,
              int64_t remembered)
      : weights_(std::move(weights)),
        noise_weights_(std::move(noise_weights)),
        table_(table),
        remembered_(remembered) {}
  int64_t size() const { return size_; }
  void extend(const int32_t* tokens, size_t count);
  // previous: -1 at the start of the text.
  void learn(int64_t previous, int32_t token, const int32_t* ids, const double* shares, size_t count);
  LookupTree propose(const int32_t* context, size_t count, const LookupLimits& limits, const LookupNoise& noise) const;

 private:
  struct Child {
    int32_t token, count, next;
  };
  struct Node {
    int32_t total = 0, first = -1, size = 0;
  };
  using Favourites = std::vector<TableWord>;  // ids, then as many logits
  struct Context {
    std::array<int32_t, kLongestContext> tokens;  // the last ones, the latest first
    int count = 0;
    void push(int32_t token);
  };
  using Units = std::array<double, kUnits>;
  struct Candidate {
    int32_t token;
    double probability;
    Units units;
  };

  void count(int32_t token);
  int32_t text(uint64_t key) const;
  const Favourites* favourites(uint64_t key) const;
  // To each unit what a factor says, so many times.
  void add(Units& units, int factor, double times = 1.0) const;
  void candidates(const Context& context, int64_t vocabulary, std::vector<Candidate>& found) const;
  // Sets the candidates' probabilities; with noise, as it stands at this position.
  void judge(std::vector<Candidate>& found, const LookupNoise& noise, int64_t position) const;

  std::vector<double> weights_, noise_weights_;
  const LookupTable* table_;
  int64_t remembered_;
  int64_t size_ = 0;
  Context tail_;
  std::vector<Node> nodes_;
  std::vector<Child> children_;
  std::unordered_map<uint64_t, int32_t> places_;
  std::unordered_map<uint64_t, Favourites> young_, old_;
};

}  // namespace pilotfish
