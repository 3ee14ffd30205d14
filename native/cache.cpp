#include "cache.h"

#include <algorithm>
#include <cstring>

#include "faults.h"

namespace pilotfish {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;

int64_t pages_for(int64_t positions) { return (positions + kPagePositions - 1) / kPagePositions; }

}  // namespace

KvCache::KvCache(int64_t layers, int64_t heads, int64_t head_dim, int64_t padded_dim, int64_t total_pages)
    : layers_(layers),
      heads_(heads),
      head_dim_(head_dim),
      padded_dim_(padded_dim),
      block_floats_((head_dim + padded_dim) * kPagePositions),
      page_floats_(layers * heads * block_floats_),
      total_pages_(total_pages) {}

int64_t KvCache::open(int64_t capacity) {
  if (capacity < 1) fail<RowsFault>("capacity is ", capacity, "; a sequence needs room for at least 1 position");
  // Compared without rounding up first: a capacity near the largest integer must not overflow.
  if (capacity > free_pages() * kPagePositions)
    fail<CacheFullFault>("a sequence of ", capacity, " positions does not fit: ", free_pages(), " of ", total_pages_,
                         " pages of ", kPagePositions,
                         " positions are free; close a sequence or give the executor a larger cache");
  size_t number = 0;
  while (number < sequences_.size() && sequences_[number].open) ++number;
  if (number == sequences_.size()) sequences_.emplace_back();
  sequences_[number] = Sequence{};
  sequences_[number].open = true;
  sequences_[number].capacity = capacity;
  reserved_ += pages_for(capacity);
  return static_cast<int64_t>(number);
}

Sequence& KvCache::at(int64_t sequence) {
  if (sequence < 0 || sequence >= static_cast<int64_t>(sequences_.size()) ||
      !sequences_[static_cast<size_t>(sequence)].open)
    fail<RowsFault>("sequence ", sequence, " is not open; expected a number from open()");
  return sequences_[static_cast<size_t>(sequence)];
}

void KvCache::close(int64_t sequence) {
  Sequence& closed = at(sequence);
  unused_.insert(unused_.end(), closed.pages.begin(), closed.pages.end());
  reserved_ -= pages_for(closed.capacity);
  closed = Sequence{};
}

void KvCache::provide(Sequence& sequence, int64_t slots) {
  while (static_cast<int64_t>(sequence.pages.size()) < pages_for(slots)) {
    if (unused_.empty()) {  // several at once, so that they may lie in huge pages
      const int64_t count = std::clamp<int64_t>(kChunkBytes / page_bytes(), 1, total_pages_ - made_);
      chunks_.emplace_back(static_cast<size_t>(count * page_bytes()));
      for (int64_t i = count - 1; i >= 0; --i)
        unused_.push_back(reinterpret_cast<float*>(chunks_.back().data()) + i * page_floats_);
      made_ += count;
    }
    sequence.pages.push_back(unused_.back());
    unused_.pop_back();
  }
}

void KvCache::write(const Sequence& sequence, int64_t slot, int64_t layer, int64_t head, const float* key,
                    const float* value) const {
  float* page = sequence.pages[static_cast<size_t>(slot / kPagePositions)];
  const int64_t lane = slot % kPagePositions;
  float* keys = page + key_offset(layer, head) + lane;
  for (int64_t d = 0; d < head_dim_; ++d) keys[d * kPagePositions] = key[d];
  std::memcpy(page + value_offset(layer, head) + lane * padded_dim_, value,
              static_cast<size_t>(head_dim_) * sizeof(float));
}

void KvCache::copy_slot(const Sequence& sequence, int64_t from, int64_t to) const {
  const float* source = sequence.pages[static_cast<size_t>(from / kPagePositions)];
  float* target = sequence.pages[static_cast<size_t>(to / kPagePositions)];
  const int64_t lane = from % kPagePositions, to_lane = to % kPagePositions;
  for (int64_t block = 0; block < layers_ * heads_; ++block) {
    const float* keys = source + block * block_floats_;
    float* to_keys = target + block * block_floats_;
    for (int64_t d = 0; d < head_dim_; ++d) to_keys[d * kPagePositions + to_lane] = keys[d * kPagePositions + lane];
    const int64_t values = head_dim_ * kPagePositions;
    std::memcpy(to_keys + values + to_lane * padded_dim_, keys + values + lane * padded_dim_,
                static_cast<size_t>(head_dim_) * sizeof(float));
  }
}

void KvCache::keep(Sequence& sequence, const std::vector<int64_t>& path) {
  int64_t parent = -1;
  for (size_t i = 0; i < path.size(); ++i) {
    const int64_t node = path[i];
    if (node < 0 || node >= static_cast<int64_t>(sequence.nodes.size()))
      fail<RowsFault>("path names node ", node, "; the sequence has ", sequence.nodes.size(), " nodes");
    if (sequence.nodes[static_cast<size_t>(node)].parent != parent)
      fail<RowsFault>("path is not connected: node ", node, " has parent ",
                      sequence.nodes[static_cast<size_t>(node)].parent, "; expected ", parent, " at step ", i,
                      " of the path");
    parent = node;
  }
  // Node numbers rise along a path, so slot i is never needed again once node path[i] >= i moves into it.
  for (size_t i = 0; i < path.size(); ++i)
    if (path[i] != static_cast<int64_t>(i))
      copy_slot(sequence, sequence.length + path[i], sequence.length + static_cast<int64_t>(i));
  for (int64_t node : path) {
    const int32_t layers = sequence.nodes[static_cast<size_t>(node)].layers;
    const bool first = sequence.committed_layers.empty();
    sequence.committed_layers.push_back(first ? layers : std::min(layers, sequence.committed_layers.back()));
  }
  sequence.length += static_cast<int64_t>(path.size());
  sequence.nodes.clear();
}

void KvCache::truncate(Sequence& sequence, int64_t length) {
  if (length < 0 || length > sequence.length)
    fail<RowsFault>("cannot truncate to ", length, " positions; the sequence has ", sequence.length, " committed");
  sequence.length = length;
  sequence.committed_layers.resize(static_cast<size_t>(length));
  sequence.nodes.clear();
}

}  // namespace pilotfish
