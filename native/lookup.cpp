#include "lookup.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "sampling.h"

namespace pilotfish {
namespace {

// The factors; drafters/lookup_weights.py lists them.
constexpr int kBias = 0;
constexpr int kListed = kBias + kTextOrders + 1;
constexpr int kShare = kListed + 2 * kTextOrders;
constexpr int kEscape = kShare + kTextOrders;
constexpr int kPair = kEscape + kTextOrders;
constexpr int kSingle = kPair + 3;
constexpr int kTable = kSingle + 3;

constexpr double kHottest = 2.0;         // temperatures above are taken as this one
constexpr double kLeastUnnamed = 0.03;  // of the probability, left for what nothing named

// The key of a context of one more token. The constant keeps the first key from nothing, which would not tell lengths.
uint64_t extended(uint64_t key, int32_t token) { return mixed(key + 0xD1B54A32D192ED03u, token); }

// Keys of the contexts that the text is counted by, the shortest first; returns how many there are.
template <class Tokens>
int text_keys(const Tokens& latest_first, int count, uint64_t* keys) {
  uint64_t key = 0;
  int order = 0;
  for (int length = 1; order < kTextOrders && length <= count; ++length) {
    key = extended(key, latest_first[static_cast<size_t>(length - 1)]);
    if (length == kTextLengths[order]) keys[order++] = key;
  }
  return order;
}

uint64_t pair_key(int64_t previous, int32_t token) {
  return (static_cast<uint64_t>(previous + 2) << 32) | static_cast<uint32_t>(token);
}

uint64_t single_key(int32_t token) { return static_cast<uint32_t>(token); }

}  // namespace

void LookupIndex::Context::push(int32_t token) {
  for (int place = std::min(count, kLongestContext - 1); place > 0; --place)
    tokens[static_cast<size_t>(place)] = tokens[static_cast<size_t>(place - 1)];
  tokens[0] = token;
  count = std::min(count + 1, kLongestContext);
}

void LookupIndex::extend(const int32_t* tokens, size_t count_of_tokens) {
  if (count_of_tokens > 64) places_.reserve(places_.size() + kTextOrders * count_of_tokens);
  for (size_t i = 0; i < count_of_tokens; ++i) {
    count(tokens[i]);
    tail_.push(tokens[i]);
    ++size_;
  }
}

void LookupIndex::count(int32_t token) {
  uint64_t keys[kTextOrders];
  const int orders = text_keys(tail_.tokens, tail_.count, keys);
  for (int order = 0; order < orders; ++order) {
    const auto [found, fresh] = places_.try_emplace(keys[order], static_cast<int32_t>(nodes_.size()));
    if (fresh) nodes_.emplace_back();
    Node& node = nodes_[static_cast<size_t>(found->second)];
    ++node.total;
    // The latest first; the one that has not come for longest makes room.
    int32_t* link = &node.first;
    int32_t* last = nullptr;
    while (*link >= 0 && children_[static_cast<size_t>(*link)].token != token) {
      last = link;
      link = &children_[static_cast<size_t>(*link)].next;
    }
    int32_t child = *link;
    if (child >= 0) {
      *link = children_[static_cast<size_t>(child)].next;
      ++children_[static_cast<size_t>(child)].count;
    } else if (node.size < kTextChildren) {
      child = static_cast<int32_t>(children_.size());
      const int32_t first = node.first;  // growing moves the links
      children_.push_back({token, 1, first});
      node.first = child;
      ++node.size;
      continue;
    } else {
      child = *last;
      *last = -1;
      children_[static_cast<size_t>(child)].token = token;
      children_[static_cast<size_t>(child)].count = 1;
    }
    children_[static_cast<size_t>(child)].next = node.first;
    node.first = child;
  }
}

void LookupIndex::learn(int64_t previous, int32_t token, const int32_t* ids, const double* shares, size_t count) {
  Favourites row(2 * count);
  for (size_t i = 0; i < count; ++i) {
    row[i].whole = ids[i];
    row[count + i].real = static_cast<float>(clamped_logit(shares[i]));
  }
  if (previous >= 0) young_[pair_key(previous, token)] = row;
  young_[single_key(token)] = std::move(row);
  if (static_cast<int64_t>(young_.size()) >= remembered_) {
    old_ = std::move(young_);
    young_.clear();
  }
}

int32_t LookupIndex::text(uint64_t key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? -1 : found->second;
}

const LookupIndex::Favourites* LookupIndex::favourites(uint64_t key) const {
  for (const auto* store : {&young_, &old_}) {
    const auto found = store->find(key);
    if (found != store->end()) return &found->second;
  }
  return nullptr;
}

void LookupIndex::add(Units& units, int factor, double times) const {
  const double* const own = weights_.data() + factor * kUnits;
  for (size_t unit = 0; unit < kUnits; ++unit) units[unit] += own[unit] * times;
}

void LookupIndex::candidates(const Context& context, int64_t vocabulary, std::vector<Candidate>& found) const {
  found.clear();
  const auto fresh_candidate = [&](int32_t token, const Units& units) -> Candidate* {
    if (token < 0 || token >= vocabulary) return nullptr;
    for (const Candidate& known : found)
      if (known.token == token) return nullptr;
    found.push_back({token, 0.0, units});
    return &found.back();
  };

  struct Source {
    TableEntry entry;
    int factors;  // the first of three: listed, share, not listed
  };
  Source sources[2 + kLongestTableContext];
  size_t known = 0;
  const TableOrder* orders[kLongestTableContext];
  int32_t hashes[kLongestTableContext];
  size_t asked = 0;
  if (table_ != nullptr) {
    for (const TableOrder& order : table_->orders) {
      if (order.length() > context.count || asked == std::size(orders)) continue;
      hashes[asked] = context_key(context.tokens.data(), order.length());
      order.bring_beginning(hashes[asked]);
      orders[asked++] = &order;
    }
  }
  const Node* nodes[kTextOrders];
  uint64_t keys[kTextOrders];
  const int lengths = text_keys(context.tokens, context.count, keys);
  int longest = 0;
  for (int32_t node; longest < lengths && (node = text(keys[longest])) >= 0; ++longest)
    nodes[longest] = &nodes_[static_cast<size_t>(node)];  // what is unknown stays so with more before it
  for (size_t i = 0; i < asked; ++i) orders[i]->bring_record(hashes[i]);
  const auto recycled = [&](uint64_t which, int factors) {
    const Favourites* row = favourites(which);
    if (row == nullptr) return;
    const size_t count = row->size() / 2;
    sources[known++] = {{row->data(), row->data() + count, static_cast<int64_t>(count), 0}, factors};
  };
  if (context.count > 1) recycled(pair_key(context.tokens[1], context.tokens[0]), kPair);
  if (context.count > 0) recycled(single_key(context.tokens[0]), kSingle);
  for (size_t i = 0; i < asked; ++i) {
    Source& source = sources[known];
    if (!orders[i]->find(hashes[i], &source.entry)) continue;
    const int rank = static_cast<int>(std::min<int64_t>(orders[i]->length(), kTableOrders)) - 1;
    source.factors = kTable + 3 * (kSeenClasses * rank + source.entry.seen);
    ++known;
  }
  // As if no source listed it: few of them list a token, so that is the cheaper thing to correct.
  Units longest_known{}, escaped;
  for (size_t s = 0; s < known; ++s) add(longest_known, sources[s].factors + 2);
  add(longest_known, kBias + longest);
  escaped = longest_known;
  if (longest > 0) add(escaped, kEscape + longest - 1);
  for (int order = longest; order >= 1; --order) {
    const Node& node = *nodes[order - 1];
    for (int32_t i = node.first; i >= 0; i = children_[static_cast<size_t>(i)].next) {
      const Child& child = children_[static_cast<size_t>(i)];
      Candidate* own = fresh_candidate(child.token, order < longest ? escaped : longest_known);
      if (own == nullptr) continue;
      add(own->units, kListed + 2 * (order - 1) + (child.count > 1));
      add(own->units, kShare + order - 1, clamped_logit(child.count / (node.total + 0.5)));
    }
  }

  for (size_t s = 0; s < known; ++s)
    for (int64_t i = 0; i < sources[s].entry.count; ++i) fresh_candidate(sources[s].entry.ids[i].whole, escaped);
  for (size_t s = 0; s < known; ++s) {
    const auto& [entry, factors] = sources[s];
    Units listed{};
    add(listed, factors);
    add(listed, factors + 2, -1.0);
    for (Candidate& candidate : found) {
      for (int64_t i = 0; i < entry.count; ++i) {
        if (entry.ids[i].whole != candidate.token) continue;
        for (size_t unit = 0; unit < kUnits; ++unit) candidate.units[unit] += listed[unit];
        add(candidate.units, factors + 1, entry.logits[i].real);
        break;
      }
    }
  }
}

void LookupIndex::judge(std::vector<Candidate>& found, const LookupNoise& noise, int64_t position) const {
  double named = 0.0;
  for (Candidate& candidate : found) {
    double score = candidate.units[0];
    for (size_t unit = 1; unit < kUnits; ++unit)
      score += std::max(candidate.units[unit], 0.0) * (unit <= kRaising ? 1.0 : -1.0);
    candidate.probability = 1.0 / (1.0 + std::exp(-score));
    named += candidate.probability;
  }
  if (noise.temperature <= 0.0 || found.empty()) return;
  const double* const w = noise_weights_.data();
  const double temperature = std::min(noise.temperature, kHottest);
  const double unnamed = std::log(std::max(1.0 - named, kLeastUnnamed));
  double total = std::exp(w[2] + w[3] * temperature + w[4] * unnamed);
  for (Candidate& candidate : found) {
    const int64_t token = candidate.token;
    double uniform;
    noise_uniforms(noise.seed, position, &token, 1, &uniform);
    const double gumbel = -std::log(-std::log(uniform));
    candidate.probability = std::exp(w[0] * (std::log(candidate.probability) + w[1] * temperature * gumbel));
    total += candidate.probability;
  }
  for (Candidate& candidate : found) candidate.probability /= total;
}

LookupTree LookupIndex::propose(const int32_t* context, size_t count_of_tokens, const LookupLimits& limits,
                                const LookupNoise& noise) const {
  struct Waiting {
    double survival, probability;
    int64_t arrival;
    int32_t token, parent;
    int64_t level;
    // The likeliest path first; of equals the first to arrive.
    bool operator<(const Waiting& other) const {
      return survival != other.survival ? survival < other.survival : arrival > other.arrival;
    }
  };
  LookupTree tree;
  std::vector<Context> paths;
  std::vector<Candidate> found;
  std::priority_queue<Waiting> waiting;
  int64_t arrivals = 0;
  const auto expand = [&](const Context& at, double survival, int32_t parent, int64_t level) {
    if (level > limits.depth) return;
    candidates(at, limits.vocabulary, found);
    judge(found, noise, noise.position + level - 1);
    const Candidate* best = nullptr;
    for (const Candidate& candidate : found)
      if (best == nullptr || candidate.probability > best->probability) best = &candidate;
    for (const Candidate& candidate : found) {
      if (!limits.branching && &candidate != best) continue;
      const double probability = candidate.probability;
      if (survival * probability >= limits.least)
        waiting.push({survival * probability, probability, arrivals++, candidate.token, parent, level});
    }
  };
  Context start;
  for (size_t i = count_of_tokens - std::min<size_t>(count_of_tokens, kLongestContext); i < count_of_tokens; ++i)
    start.push(context[i]);
  expand(start, 1.0, -1, 1);
  while (!waiting.empty() && static_cast<int64_t>(tree.tokens.size()) < limits.nodes) {
    const Waiting next = waiting.top();
    waiting.pop();
    const int32_t node = static_cast<int32_t>(tree.tokens.size());
    tree.tokens.push_back(next.token);
    tree.parents.push_back(next.parent);
    tree.confidence.push_back(next.probability);
    paths.push_back(next.parent < 0 ? start : paths[static_cast<size_t>(next.parent)]);
    paths.back().push(next.token);
    if (static_cast<int64_t>(tree.tokens.size()) < limits.nodes)
      expand(paths.back(), next.survival, node, next.level + 1);
  }
  return tree;
}

}  // namespace pilotfish
