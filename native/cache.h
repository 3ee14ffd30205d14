// The key-value cache: pages of 32 positions, the sequences that hold them, and the nodes not yet kept.
//
// A page holds, for each layer and key-value head, the keys as [dimension][32] and the values as [32][padded dimension].
// Sequences grow page by page. A page may have several users: sequences with the same text before it, and whoever shares
// it out. A sequence writes only into pages of its own; one that it shares is copied first.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packing.h"

namespace pilotfish {

// A row that was run but not kept. Node i stands in slot length + i, at position length + depth.
struct Node {
  int32_t parent;  // an earlier node, or -1 for the committed prefix
  int32_t depth;   // nodes above it
  int32_t layers;  // how many layers, counted from the first, hold its key and value
};

struct Sequence {
  bool open = false;
  int64_t capacity = 0;
  int64_t length = 0;  // committed positions
  std::vector<float*> pages;     // of its slots, in order
  std::vector<int64_t> numbers;  // the same pages by number
  std::vector<Node> nodes;
  std::vector<int32_t> committed_layers;  // for each committed position, the layers that hold it and all before it
};

class KvCache {
 public:
  KvCache(int64_t layers, int64_t heads, int64_t head_dim, int64_t padded_dim, int64_t total_pages);

  int64_t open(int64_t capacity);
  void close(int64_t sequence);
  // The open sequence of that number; a RowsFault if there is none.
  Sequence& at(int64_t sequence);
  // Free pages that `provide` would take.
  int64_t missing(const Sequence& sequence, int64_t slots) const;
  // Makes sure that the first `slots` slots of a sequence have pages, and those not committed pages of their own.
  void provide(Sequence& sequence, int64_t slots);
  void keep(Sequence& sequence, const std::vector<int64_t>& path);
  void truncate(Sequence& sequence, int64_t length);

  // One more user for the page of a sequence's block of 32 committed positions; returns its number.
  int64_t share(const Sequence& sequence, int64_t block);
  // The sequence, which ends with a full page, goes on with these pages as its own committed positions.
  void adopt(Sequence& sequence, const std::vector<int64_t>& pages);
  // One user less.
  void release(int64_t page);
  // There are this many pages from now on.
  void limit(int64_t pages);

  int64_t total_pages() const { return total_pages_; }
  int64_t free_pages() const { return total_pages_ - used_; }
  int64_t page_bytes() const { return page_floats_ * static_cast<int64_t>(sizeof(float)); }
  int64_t key_offset(int64_t layer, int64_t head) const { return (layer * heads_ + head) * block_floats_; }
  int64_t value_offset(int64_t layer, int64_t head) const {
    return key_offset(layer, head) + head_dim_ * kPagePositions;
  }
  // Writes one key and value of head_dim numbers into a slot that has its page.
  void write(const Sequence& sequence, int64_t slot, int64_t layer, int64_t head, const float* key,
             const float* value) const;

 private:
  struct Page {
    float* data;
    int64_t users;
  };
  int64_t take();
  void append(Sequence& sequence, int64_t page);
  void trim(Sequence& sequence);
  Page& used_page(int64_t page);
  bool shares_end(const Sequence& sequence, int64_t slots) const;
  void copy_slot(const Sequence& sequence, int64_t from, int64_t to) const;

  int64_t layers_, heads_, head_dim_, padded_dim_, block_floats_, page_floats_, total_pages_;
  int64_t used_ = 0;  // pages with users
  std::vector<Sequence> sequences_;
  std::vector<Memory> chunks_;
  std::vector<Page> pages_;  // in the chunks
  std::vector<int64_t> unused_;
};

}  // namespace pilotfish
