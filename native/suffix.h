// A suffix automaton of a growing text that knows how often each short string occurred and what followed it.
//
// One state stands for all strings that end at the same places; it has at most two states and three edges per token and
// grows in constant amortised time (Blumer et al., 1985). Counts, latest ends and favourite successors are kept along
// the suffixes of the text up to a depth, so an appended token costs at most `depth` steps. Owns the index and
// SuffixDecoding's scoring (https://arxiv.org/abs/2411.04975); drafters/suffix_index.py is the same in Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pilotfish {

struct SuffixLimits {
  int64_t longest_match = 64;  // context tokens looked at
  int64_t draft_len = 1;       // tokens on a path
  int64_t nodes = 1;           // tokens in all
  double factor = 1.0;         // at most factor * match length tokens on a path
  double min_prob = 0.1;       // estimated survival of a node from the root
  bool branching = false;
};

struct SuffixProposal {
  std::vector<int32_t> tokens, parents;  // parent -1: the context
  std::vector<double> confidence;        // estimated survival given the parent
  double score = 0.0;                    // expected tokens: the sum of the survivals from the root
  int64_t match = 0;                     // length of the matched context
};

class SuffixIndex {
 public:
  // Strings of up to `depth` tokens are counted.
  explicit SuffixIndex(int64_t depth);
  // Appends tokens. A negative one separates texts: it is never proposed.
  void extend(const int32_t* tokens, size_t count);
  int64_t size() const { return states_[0].count; }
  // The best-scored continuation of the context, whose last tokens are looked up.
  SuffixProposal propose(const int32_t* context, size_t count, const SuffixLimits& limits) const;

 private:
  struct State {
    int32_t length = 0;       // of its longest string
    int32_t link = -1;        // state of the longest suffix that ends at more places
    int32_t count = 0;        // places where its strings end
    int32_t latest = -1;      // the last of them
    int32_t first_edge = -1;
    int32_t favourite = -1;   // edge to the most frequent successor, of equals the latest
  };
  struct Edge {
    int32_t source, token, target, next;
  };

  void append(int32_t token);
  int32_t add_state(const State& state);
  int32_t find(int32_t state, int32_t token) const;
  void add_edge(int32_t state, int32_t token, int32_t target);
  void grow_table();
  // The state of the suffix of this length of a string that `state` stands for.
  int32_t at_length(int32_t state, int64_t length) const;
  State& at(int32_t state) { return states_[static_cast<size_t>(state)]; }
  const State& at(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  SuffixProposal chain(int32_t state, int64_t draft_len, const SuffixLimits& limits) const;
  SuffixProposal tree(int32_t state, int64_t draft_len, const SuffixLimits& limits) const;

  int64_t depth_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // edges by (state, token), open addressing; -1 is free
  int32_t last_ = 0;            // state of the whole text
  int32_t active_ = 0;          // state of its last `active_length_` tokens
  int64_t active_length_ = 0;
};

}  // namespace pilotfish
