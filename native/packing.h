// Weight matrices in the order in which the kernels read them: tiles of 32 output columns, inputs ascending within.
//
// float32: [k][32]. bfloat16: [k][16] words, column c in the low and c + 16 in the high half; or pairs, [k / 2][32] words,
// the earlier of two inputs in the low half. int8: groups of 32 inputs,
// [32][32] int8, then 32 scales, then 32 minimums where there are any; scales are kept as float16 where that is exact.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace pilotfish {

enum class Element { kFloat32, kFloat16, kBFloat16 };

// A matrix as it lies in the caller's memory, rows being outputs.
struct FloatSource {
  const void* data;
  Element element;
};
struct GroupedSource {
  const int8_t* quants;   // [out][in]
  const float* scales;    // [out][in / 32]
  const float* minimums;  // the same, or null
};

// Which source row each packed column takes.
struct Column {
  int32_t source = -1;  // -1: a column of zeros
  int64_t row = 0;
};

enum class FloatStorage { kFloat32, kBFloat16, kBFloat16Pairs, kInt8 };

// Zeroed memory aligned to cache lines, in huge pages where the system gives them.
class Memory {
 public:
  Memory() : data_(nullptr, Unmap{0}) {}
  explicit Memory(size_t bytes);
  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(uint8_t* data) const;
  };
  std::unique_ptr<uint8_t, Unmap> data_;
  size_t size_ = 0;
};

struct PackedMatrix {
  Storage storage = Storage::kFloat32;
  int64_t k = 0;        // inputs as the kernels count them
  int64_t columns = 0;  // packed columns, the padding of the last tile excluded
  int64_t tiles = 0;
  int64_t tile_bytes = 0;
  Memory memory;
  std::vector<float> bias;  // per packed column, empty without

  bool loaded() const { return tiles > 0; }
  bool has_minimum() const {
    return storage == Storage::kInt8HalfMinimum || storage == Storage::kInt8FloatMinimum;
  }
  bool rounds_inputs() const { return storage == Storage::kBFloat16Pairs; }
  const uint8_t* tile(int64_t index) const { return memory.data() + index * tile_bytes; }
  // The weights of one output as float32, `k` values: for an embedding.
  void read_column(int64_t column, float* out) const;
};

PackedMatrix pack_floats(const std::vector<FloatSource>& sources, int64_t inputs, const std::vector<Column>& columns,
                         FloatStorage storage);
PackedMatrix pack_grouped(const std::vector<GroupedSource>& sources, int64_t inputs,
                          const std::vector<Column>& columns);

}  // namespace pilotfish
