#include "suffix.h"

#include <algorithm>
#include <queue>

namespace pilotfish {
namespace {

size_t hash(int32_t state, int32_t token) {
  uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32) | static_cast<uint32_t>(token);
  key *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(key ^ (key >> 32));
}

}  // namespace

SuffixIndex::SuffixIndex(int64_t depth) : depth_(depth), states_(1), table_(64, -1) {}

void SuffixIndex::extend(const int32_t* tokens, size_t count) {
  // Doubling, so that growth by single tokens stays constant amortised.
  const auto reserve = [](auto& items, size_t wanted) {
    if (wanted > items.capacity()) items.reserve(std::max(wanted, 2 * items.capacity()));
  };
  reserve(states_, states_.size() + 2 * count);
  reserve(edges_, edges_.size() + 3 * count);
  for (size_t i = 0; i < count; ++i) append(tokens[i]);
}

int32_t SuffixIndex::add_state(const State& state) {
  states_.push_back(state);
  return static_cast<int32_t>(states_.size()) - 1;
}

int32_t SuffixIndex::find(int32_t state, int32_t token) const {
  const size_t mask = table_.size() - 1;
  for (size_t slot = hash(state, token) & mask;; slot = (slot + 1) & mask) {
    const int32_t edge = table_[slot];
    if (edge < 0) return -1;
    const Edge& found = edges_[static_cast<size_t>(edge)];
    if (found.token == token && found.source == state) return edge;
  }
}

void SuffixIndex::add_edge(int32_t state, int32_t token, int32_t target) {
  if (2 * (edges_.size() + 1) > table_.size()) grow_table();
  const int32_t edge = static_cast<int32_t>(edges_.size());
  edges_.push_back({state, token, target, at(state).first_edge});
  at(state).first_edge = edge;
  const size_t mask = table_.size() - 1;
  size_t slot = hash(state, token) & mask;
  while (table_[slot] >= 0) slot = (slot + 1) & mask;
  table_[slot] = edge;
}

void SuffixIndex::grow_table() {
  table_.assign(4 * table_.size(), -1);
  const size_t mask = table_.size() - 1;
  for (size_t edge = 0; edge < edges_.size(); ++edge) {
    size_t slot = hash(edges_[edge].source, edges_[edge].token) & mask;
    while (table_[slot] >= 0) slot = (slot + 1) & mask;
    table_[slot] = static_cast<int32_t>(edge);
  }
}

int32_t SuffixIndex::at_length(int32_t state, int64_t length) const {
  while (state != 0 && at(at(state).link).length >= length) state = at(state).link;
  return length == 0 ? 0 : state;
}

void SuffixIndex::append(int32_t token) {
  const int32_t place = at(0).count;
  const int32_t whole = add_state({at(last_).length + 1, 0, 0, place});
  int32_t above = last_, edge = -1;
  for (; above >= 0 && (edge = find(above, token)) < 0; above = at(above).link) add_edge(above, token, whole);
  if (above >= 0) {
    const int32_t target = edges_[static_cast<size_t>(edge)].target;
    if (at(above).length + 1 == at(target).length) {
      at(whole).link = target;
    } else {
      // The shorter strings of the target now end at one more place: they part from it.
      State part = at(target);
      part.length = at(above).length + 1;
      part.first_edge = part.favourite = -1;
      const int32_t clone = add_state(part);
      for (int32_t old = at(target).first_edge; old >= 0; old = edges_[static_cast<size_t>(old)].next) {
        add_edge(clone, edges_[static_cast<size_t>(old)].token, edges_[static_cast<size_t>(old)].target);
        if (old == at(target).favourite) at(clone).favourite = at(clone).first_edge;
      }
      at(target).link = at(whole).link = clone;
      for (; above >= 0 && (edge = find(above, token)) >= 0 && edges_[static_cast<size_t>(edge)].target == target;
           above = at(above).link)
        edges_[static_cast<size_t>(edge)].target = clone;
    }
  }
  last_ = whole;

  // Every suffix of the text before, up to the depth, has been followed by this token once more. Suffixes that share a
  // state, or whose continuations do, are counted once.
  active_length_ = std::min(active_length_, depth_ - 1);
  active_ = at_length(active_, active_length_);
  int32_t counted = -1;
  const int32_t next = edges_[static_cast<size_t>(find(active_, token))].target;
  for (int32_t suffix = active_; suffix >= 0; suffix = at(suffix).link) {
    const int32_t taken = find(suffix, token);
    const int32_t reached = edges_[static_cast<size_t>(taken)].target;
    if (reached != counted) {
      ++at(reached).count;
      at(reached).latest = place;
      counted = reached;
    }
    int32_t& favourite = at(suffix).favourite;
    if (token >= 0 && (favourite < 0 || at(reached).count >= at(edges_[static_cast<size_t>(favourite)].target).count))
      favourite = taken;
  }
  active_ = at_length(next, ++active_length_);
  ++at(0).count;
}

SuffixProposal SuffixIndex::propose(const int32_t* context, size_t count, const SuffixLimits& limits) const {
  const size_t looked_at = std::min(count, static_cast<size_t>(limits.longest_match));
  int32_t state = 0;
  int64_t match = 0;
  for (const int32_t* token = context + (count - looked_at); token != context + count; ++token) {
    int32_t edge = find(state, *token);
    while (edge < 0 && state != 0) {
      state = at(state).link;
      match = at(state).length;
      edge = find(state, *token);
    }
    if (edge >= 0) {
      state = edges_[static_cast<size_t>(edge)].target;
      ++match;
    }
  }
  SuffixProposal best;
  for (; state != 0; state = at(state).link) {
    // All strings of a state are followed alike, and the longest may be followed furthest.
    match = std::min<int64_t>(match, at(state).length);
    const int64_t draft_len = std::min(
        limits.draft_len, static_cast<int64_t>(std::min(limits.factor * static_cast<double>(match), 1e9)));
    SuffixProposal found = limits.branching ? tree(state, draft_len, limits) : chain(state, draft_len, limits);
    if (found.score > best.score) {
      best = std::move(found);
      best.match = match;
    }
  }
  return best;
}

SuffixProposal SuffixIndex::chain(int32_t state, int64_t draft_len, const SuffixLimits& limits) const {
  SuffixProposal proposal;
  double survival = 1.0;
  for (int64_t node = 0; node < std::min(draft_len, limits.nodes) && at(state).favourite >= 0; ++node) {
    const Edge& edge = edges_[static_cast<size_t>(at(state).favourite)];
    const double share = static_cast<double>(at(edge.target).count) / at(state).count;
    survival *= share;
    if (survival < limits.min_prob) break;
    proposal.tokens.push_back(edge.token);
    proposal.parents.push_back(static_cast<int32_t>(node) - 1);
    proposal.confidence.push_back(share);
    proposal.score += survival;
    state = edge.target;
  }
  return proposal;
}

SuffixProposal SuffixIndex::tree(int32_t state, int64_t draft_len, const SuffixLimits& limits) const {
  struct Candidate {
    double survival, share;
    int32_t latest, token, state, parent;
    int64_t level;
    // The most likely first; of equals the latest, then the lowest token.
    bool operator<(const Candidate& other) const {
      if (survival != other.survival) return survival < other.survival;
      if (latest != other.latest) return latest < other.latest;
      return token > other.token;
    }
  };
  SuffixProposal proposal;
  std::priority_queue<Candidate> waiting;
  const auto expand = [&](int32_t from, double survival, int32_t parent, int64_t level) {
    if (level > draft_len) return;
    for (int32_t i = at(from).first_edge; i >= 0; i = edges_[static_cast<size_t>(i)].next) {
      const Edge& edge = edges_[static_cast<size_t>(i)];
      const double share = static_cast<double>(at(edge.target).count) / at(from).count;
      if (edge.token >= 0 && survival * share >= limits.min_prob)
        waiting.push({survival * share, share, at(edge.target).latest, edge.token, edge.target, parent, level});
    }
  };
  expand(state, 1.0, -1, 1);
  while (!waiting.empty() && static_cast<int64_t>(proposal.tokens.size()) < limits.nodes) {
    const Candidate best = waiting.top();
    waiting.pop();
    const int32_t node = static_cast<int32_t>(proposal.tokens.size());
    proposal.tokens.push_back(best.token);
    proposal.parents.push_back(best.parent);
    proposal.confidence.push_back(best.share);
    proposal.score += best.survival;
    expand(best.state, best.survival, node, best.level + 1);
  }
  return proposal;
}

}  // namespace pilotfish
