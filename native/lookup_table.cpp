#include "lookup_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace pilotfish {
namespace {

constexpr size_t kHeader = 2, kPerSuccessor = 2;  // words of a record: before the ids, and for each successor
constexpr size_t kReach = 15;  // the last word of a record of six successors, the most that tables have, is no further off

constexpr int32_t kMostSuccessors = 255;  // of a context; a table's file has a byte for their number

void bring(const void* at) { __builtin_prefetch(at, 0, 3); }

}  // namespace

uint64_t mixed(uint64_t hash, int32_t token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

int32_t context_key(const int32_t* latest_first, int64_t length) {
  uint64_t hash = static_cast<uint64_t>(length);
  for (int64_t place = length - 1; place >= 0; --place) hash = mixed(hash, latest_first[place]);
  return static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
}

double clamped_logit(double share) {
  const double clamped = std::min(std::max(share, 1e-4), 1.0 - 1e-4);
  return std::log(clamped / (1.0 - clamped));
}

TableOrder::TableOrder(int64_t length, const int32_t* keys, size_t entries, const int32_t* starts,
                       const int32_t* successors, const float* shares, size_t successors_in_all, const uint8_t* seen)
    : length_(length) {
  bool fits = starts[0] == 0 && static_cast<size_t>(starts[entries]) == successors_in_all &&
              kHeader * entries + kPerSuccessor * successors_in_all <= std::numeric_limits<uint32_t>::max();
  for (size_t i = 0; i < entries; ++i)
    fits = fits && starts[i] <= starts[i + 1] && starts[i + 1] - starts[i] <= kMostSuccessors && seen[i] < kSeenClasses;
  if (!fits) throw std::invalid_argument("a table's runs of successors are out of range");

  while (shift_ > 8 && (size_t{1} << (32 - shift_)) < entries) --shift_;
  const size_t buckets = size_t{1} << (32 - shift_);
  beginnings_.assign(buckets + 1, 0);
  const auto words = [&](size_t i) { return kHeader + kPerSuccessor * static_cast<size_t>(starts[i + 1] - starts[i]); };
  for (size_t i = 0; i < entries; ++i) beginnings_[bucket(keys[i]) + 1] += static_cast<uint32_t>(words(i));
  std::partial_sum(beginnings_.begin(), beginnings_.end(), beginnings_.begin());
  records_.resize(beginnings_[buckets] + kReach);
  std::vector<uint32_t> free(beginnings_.begin(), beginnings_.end() - 1);
  for (size_t i = 0; i < entries; ++i) {
    uint32_t& at = free[bucket(keys[i])];
    const int32_t count = starts[i + 1] - starts[i];
    records_[at].whole = keys[i];
    records_[at + 1].whole = count * kSeenClasses + seen[i];
    for (int32_t s = 0; s < count; ++s) {
      records_[at + kHeader + static_cast<size_t>(s)].whole = successors[starts[i] + s];
      records_[at + kHeader + static_cast<size_t>(count + s)].real =
          static_cast<float>(clamped_logit(shares[starts[i] + s]));
    }
    at += static_cast<uint32_t>(words(i));
  }
}

size_t TableOrder::bucket(int32_t key) const { return shift_ < 32 ? static_cast<uint32_t>(key) >> shift_ : 0u; }

void TableOrder::bring_beginning(int32_t key) const { bring(beginnings_.data() + bucket(key)); }

void TableOrder::bring_record(int32_t key) const {
  const TableWord* const record = records_.data() + beginnings_[bucket(key)];
  bring(record);
  bring(record + kReach);
}

bool TableOrder::find(int32_t key, TableEntry* entry) const {
  const size_t own = bucket(key);
  const TableWord* const end = records_.data() + beginnings_[own + 1];
  for (const TableWord* record = records_.data() + beginnings_[own]; record < end;) {
    const int64_t count = record[1].whole / kSeenClasses;
    if (record[0].whole == key) {
      *entry = {record + kHeader, record + kHeader + count, count, record[1].whole % kSeenClasses};
      return true;
    }
    record += kHeader + kPerSuccessor * static_cast<size_t>(count);
  }
  return false;
}

}  // namespace pilotfish
