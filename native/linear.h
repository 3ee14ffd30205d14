// One packed matrix by itself: rows times weights with the decoder's kernels, for small models that are put together
// elsewhere (draft heads).
#pragma once
#include <vector>

#include "packing.h"

namespace pilotfish {

class PackedLinear {
 public:
  // `weights` is [outputs][inputs].
  PackedLinear(const FloatSource& weights, int64_t outputs, int64_t inputs, FloatStorage storage);
  // out[row][outputs] = x[row][inputs] * weights, each row as if it were alone.
  void multiply(const float* x, int64_t rows, float* out, int threads) const;
  int64_t outputs() const { return matrix_.columns; }
  int64_t inputs() const { return inputs_; }

 private:
  int64_t inputs_;
  PackedMatrix matrix_;
};

}  // namespace pilotfish
