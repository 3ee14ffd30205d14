// A back-off table: what came after the last few tokens in the target's own texts. drafters/backoff.py has its file.
//
// Look-ups come after a pass that left nothing of the table in the caches. So each context is one record, of a cache line
// or two, and a caller tells what it will look up before it looks: then it waits for memory twice, and not for each part of
// each context.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pilotfish {

constexpr int kSeenClasses = 5;  // classes of how often a context was seen
constexpr int kLongestTableContext = 8;

// 32 bits of a record: a key, an id, or the logit of a share.
union TableWord {
  int32_t whole;
  float real;
};

// The successors of a context, the likeliest first.
struct TableEntry {
  const TableWord* ids = nullptr;
  const TableWord* logits = nullptr;
  int64_t count = 0;
  int seen = 0;
};

// All contexts of one length.
class TableOrder {
 public:
  // keys[i] has the successors from starts[i] to starts[i + 1]. Throws std::invalid_argument where these are not runs
  // that follow each other through `successors` entries, or a class is out of range.
  TableOrder(int64_t length, const int32_t* keys, size_t entries, const int32_t* starts, const int32_t* successors,
             const float* shares, size_t successors_in_all, const uint8_t* seen);

  int64_t length() const { return length_; }
  // In this order, with other work in between: each brings near what the next one reads.
  void bring_beginning(int32_t key) const;
  void bring_record(int32_t key) const;
  bool find(int32_t key, TableEntry* entry) const;

 private:
  size_t bucket(int32_t key) const;

  int64_t length_;
  // Where the records of keys with the same upper bits begin, and where the last ones end. Keys are hashes, so few share
  // their upper bits.
  std::vector<uint32_t> beginnings_;
  std::vector<TableWord> records_;  // key, successors * kSeenClasses + class, ids, logits
  int shift_ = 32;
};

struct LookupTable {
  std::vector<TableOrder> orders;  // the longest first
};

// Of the last `length` tokens of a text.
int32_t context_key(const int32_t* latest_first, int64_t length);
uint64_t mixed(uint64_t hash, int32_t token);
double clamped_logit(double share);

}  // namespace pilotfish
