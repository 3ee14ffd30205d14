#include "linear.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "faults.h"
#include "numbers.h"
#include "pool.h"

namespace pilotfish {
namespace {

std::vector<Column> in_order(int64_t count) {
  std::vector<Column> columns;
  for (int64_t row = 0; row < count; ++row) columns.push_back({0, row});
  return columns;
}

}  // namespace

PackedLinear::PackedLinear(const FloatSource& weights, int64_t outputs, int64_t inputs, FloatStorage storage)
    : inputs_(inputs) {
  // It wants sums of its inputs, which this class does not do.
  if (storage == FloatStorage::kInt8)
    fail<TensorFault>("storage is int8; expected float32, bfloat16 or bfloat16-compute");
  matrix_ = pack_floats({weights}, inputs, in_order(outputs), storage);
}

void PackedLinear::multiply(const float* x, int64_t rows, float* out, int threads) const {
  const int64_t stride = round_up(inputs_, 32);
  std::vector<float> padded(static_cast<size_t>(rows * stride), 0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    float* own = padded.data() + row * stride;
    std::memcpy(own, x + row * inputs_, static_cast<size_t>(inputs_) * sizeof(float));
    // In place; an odd width has a zero after it, which completes the last pair.
    if (matrix_.rounds_inputs())
      kernels().round_bfloat16(own, round_up(inputs_, 2), reinterpret_cast<uint16_t*>(own));
  }
  std::vector<float> scratch(static_cast<size_t>(threads * rows * kTileColumns));
  run_team(threads, [&](Worker& worker) {
    worker.share(matrix_.tiles, [&](int64_t tile, int64_t next) {
      LinearArgs args{};
      args.storage = matrix_.storage;
      args.tile = matrix_.tile(tile);
      args.k = matrix_.k;
      args.tile_bytes = matrix_.tile_bytes;
      args.rows = rows;
      args.x = padded.data();
      args.x_stride = stride;
      args.out = scratch.data() + worker.id() * rows * kTileColumns;
      args.prefetch = next >= 0 ? matrix_.tile(next) : nullptr;
      kernels().linear(args);
      const int64_t column = tile * kTileColumns;
      const size_t width = static_cast<size_t>(std::min<int64_t>(kTileColumns, matrix_.columns - column));
      for (int64_t row = 0; row < rows; ++row)
        std::memcpy(out + row * matrix_.columns + column, args.out + row * kTileColumns, width * sizeof(float));
    });
  });
}

}  // namespace pilotfish
