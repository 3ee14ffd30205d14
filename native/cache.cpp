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
  if (capacity > total_pages_ * kPagePositions)
    fail<CacheFullFault>("a sequence of ", capacity, " positions does not fit: there are ", total_pages_, " pages of ",
                         kPagePositions, " positions; ask for fewer positions or give the executor a larger cache");
  size_t number = 0;
  while (number < sequences_.size() && sequences_[number].open) ++number;
  if (number == sequences_.size()) sequences_.emplace_back();
  sequences_[number] = Sequence{};
  sequences_[number].open = true;
  sequences_[number].capacity = capacity;
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
  for (int64_t page : closed.numbers) release(page);
  closed = Sequence{};
}

bool KvCache::shares_end(const Sequence& sequence, int64_t slots) const {
  const size_t last = static_cast<size_t>(sequence.length / kPagePositions);
  return slots > sequence.length && last < sequence.numbers.size() &&
         pages_[static_cast<size_t>(sequence.numbers[last])].users > 1;
}

int64_t KvCache::missing(const Sequence& sequence, int64_t slots) const {
  const int64_t more = pages_for(slots) - static_cast<int64_t>(sequence.pages.size());
  return std::max<int64_t>(more, 0) + (shares_end(sequence, slots) ? 1 : 0);
}

int64_t KvCache::take() {
  if (unused_.empty()) {  // several at once, so that they may lie in huge pages
    const int64_t made = static_cast<int64_t>(pages_.size());
    const int64_t count = std::clamp<int64_t>(kChunkBytes / page_bytes(), 1, total_pages_ - made);
    chunks_.emplace_back(static_cast<size_t>(count * page_bytes()));
    for (int64_t i = 0; i < count; ++i)
      pages_.push_back({reinterpret_cast<float*>(chunks_.back().data()) + i * page_floats_, 0});
    for (int64_t i = count - 1; i >= 0; --i) unused_.push_back(made + i);
  }
  const int64_t page = unused_.back();
  unused_.pop_back();
  pages_[static_cast<size_t>(page)].users = 1;
  ++used_;
  return page;
}

void KvCache::append(Sequence& sequence, int64_t page) {
  sequence.numbers.push_back(page);
  sequence.pages.push_back(pages_[static_cast<size_t>(page)].data);
}

void KvCache::provide(Sequence& sequence, int64_t slots) {
  if (shares_end(sequence, slots)) {
    const size_t last = static_cast<size_t>(sequence.length / kPagePositions);
    const int64_t shared = sequence.numbers[last], own = take();
    std::memcpy(pages_[static_cast<size_t>(own)].data, pages_[static_cast<size_t>(shared)].data,
                static_cast<size_t>(page_bytes()));
    sequence.numbers[last] = own;
    sequence.pages[last] = pages_[static_cast<size_t>(own)].data;
    release(shared);
  }
  while (static_cast<int64_t>(sequence.pages.size()) < pages_for(slots)) append(sequence, take());
}

void KvCache::trim(Sequence& sequence) {
  while (static_cast<int64_t>(sequence.pages.size()) > pages_for(sequence.length)) {
    release(sequence.numbers.back());
    sequence.numbers.pop_back();
    sequence.pages.pop_back();
  }
}

KvCache::Page& KvCache::used_page(int64_t page) {
  if (page < 0 || page >= static_cast<int64_t>(pages_.size()) || pages_[static_cast<size_t>(page)].users == 0)
    fail<RowsFault>("page ", page, " is not in use; expected a number from share()");
  return pages_[static_cast<size_t>(page)];
}

int64_t KvCache::share(const Sequence& sequence, int64_t block) {
  if (block < 0 || block >= sequence.length / kPagePositions)
    fail<RowsFault>("block ", block, " is not full; the sequence has ", sequence.length, " committed positions, ",
                    kPagePositions, " to a block");
  const int32_t layers = sequence.committed_layers[static_cast<size_t>((block + 1) * kPagePositions - 1)];
  if (layers < layers_)
    fail<RowsFault>("block ", block, " went through ", layers, " layers only; expected all ", layers_);
  const int64_t page = sequence.numbers[static_cast<size_t>(block)];
  ++pages_[static_cast<size_t>(page)].users;
  return page;
}

void KvCache::adopt(Sequence& sequence, const std::vector<int64_t>& pages) {
  if (sequence.length % kPagePositions != 0 || !sequence.nodes.empty())
    fail<RowsFault>("a sequence of ", sequence.length, " committed positions and ", sequence.nodes.size(),
                    " nodes cannot go on with pages; expected full pages and no nodes");
  if (!sequence.committed_layers.empty() && sequence.committed_layers.back() < layers_)
    fail<RowsFault>("the sequence went through ", sequence.committed_layers.back(), " layers only; expected all");
  const int64_t count = static_cast<int64_t>(pages.size());
  if (count > (sequence.capacity - sequence.length) / kPagePositions)
    fail<CacheFullFault>(count, " pages do not fit a sequence of ", sequence.length, " positions that was opened for ",
                         sequence.capacity);
  for (int64_t page : pages) used_page(page);
  for (int64_t page : pages) {
    ++used_page(page).users;
    append(sequence, page);
  }
  sequence.length += count * kPagePositions;
  sequence.committed_layers.resize(static_cast<size_t>(sequence.length), static_cast<int32_t>(layers_));
}

void KvCache::release(int64_t page) {
  if (--used_page(page).users > 0) return;
  unused_.push_back(page);
  --used_;
}

void KvCache::limit(int64_t pages) {
  if (pages < std::max<int64_t>(used_, 1))
    fail<CacheFullFault>("the cache cannot be limited to ", pages, " pages; ", used_, " are in use");
  total_pages_ = pages;
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
  trim(sequence);
}

void KvCache::truncate(Sequence& sequence, int64_t length) {
  if (length < 0 || length > sequence.length)
    fail<RowsFault>("cannot truncate to ", length, " positions; the sequence has ", sequence.length, " committed");
  sequence.length = length;
  sequence.committed_layers.resize(static_cast<size_t>(length));
  sequence.nodes.clear();
  trim(sequence);
}

}  // namespace pilotfish
