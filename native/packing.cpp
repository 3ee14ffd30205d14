#include "packing.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "numbers.h"

namespace pilotfish {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

float element(const FloatSource& source, int64_t index) {
  switch (source.element) {
    case Element::kFloat32: return static_cast<const float*>(source.data)[index];
    case Element::kFloat16: return float16_to_float32(static_cast<const uint16_t*>(source.data)[index]);
    case Element::kBFloat16: return bfloat16_to_float32(static_cast<const uint16_t*>(source.data)[index]);
  }
  return 0.0f;
}

PackedMatrix empty_matrix(Storage storage, int64_t k, size_t columns, int64_t tile_bytes) {
  PackedMatrix matrix;
  matrix.storage = storage;
  matrix.k = k;
  matrix.columns = static_cast<int64_t>(columns);
  matrix.tiles = (matrix.columns + kTileColumns - 1) / kTileColumns;
  matrix.tile_bytes = tile_bytes;
  matrix.memory = Memory(static_cast<size_t>(matrix.tiles * tile_bytes));
  return matrix;
}

bool fits_float16(float value) {
  return float_to_bits(float16_to_float32(float32_to_float16(value))) == float_to_bits(value);
}

int64_t factor_bytes(bool half) { return kTileColumns * (half ? 2 : 4); }

int64_t group_bytes(bool half, bool minimum) {
  return kGroup * kTileColumns + factor_bytes(half) * (minimum ? 2 : 1);
}

void put_factor(uint8_t* at, bool half, int lane, float value) {
  if (half)
    reinterpret_cast<uint16_t*>(at)[lane] = float32_to_float16(value);
  else
    reinterpret_cast<float*>(at)[lane] = value;
}

float get_factor(const uint8_t* at, bool half, int64_t lane) {
  return half ? float16_to_float32(reinterpret_cast<const uint16_t*>(at)[lane])
              : reinterpret_cast<const float*>(at)[lane];
}

bool half_scales(Storage storage) { return storage == Storage::kInt8Half || storage == Storage::kInt8HalfMinimum; }

// Groups of 32 with scale max |w| / 127 rounded to float16, as Q8_0 has them.
PackedMatrix quantise(const std::vector<FloatSource>& sources, int64_t inputs, const std::vector<Column>& columns) {
  const int64_t groups = (inputs + kGroup - 1) / kGroup, bytes = group_bytes(true, false);
  PackedMatrix matrix = empty_matrix(Storage::kInt8Half, groups * kGroup, columns.size(), groups * bytes);
  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].source < 0) continue;
    const FloatSource& source = sources[static_cast<size_t>(columns[c].source)];
    uint8_t* tile = matrix.memory.data() + static_cast<int64_t>(c) / kTileColumns * matrix.tile_bytes;
    const int lane = static_cast<int>(c % kTileColumns);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * kGroup, count = std::min<int64_t>(kGroup, inputs - begin);
      float values[kGroup], largest = 0.0f;
      for (int64_t i = 0; i < count; ++i) {
        values[i] = element(source, columns[c].row * inputs + begin + i);
        largest = std::max(largest, std::fabs(values[i]));
      }
      const float scale = float16_to_float32(float32_to_float16(std::min(largest / 127.0f, 65504.0f)));
      uint8_t* group = tile + g * bytes;
      put_factor(group + kGroup * kTileColumns, true, lane, scale);
      for (int64_t i = 0; i < count; ++i) {
        const float quant = scale > 0.0f ? std::nearbyint(values[i] / scale) : 0.0f;
        reinterpret_cast<int8_t*>(group)[i * kTileColumns + lane] =
            static_cast<int8_t>(std::max(-127.0f, std::min(127.0f, quant)));
      }
    }
  }
  return matrix;
}

}  // namespace

Memory::Memory(size_t bytes) : size_(bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t whole = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 4096)) + (huge ? kHugePage : 0);
  void* mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  uint8_t* start = static_cast<uint8_t*>(mapped);
  size_t kept = whole;
  if (huge) {  // begin on a huge page; give back what lies before
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (skip > 0) munmap(start, skip);
    start += skip;
    kept -= skip;
    madvise(start, kept, MADV_HUGEPAGE);
  }
  data_ = std::unique_ptr<uint8_t, Unmap>(start, Unmap{kept});
}

void Memory::Unmap::operator()(uint8_t* data) const { munmap(data, bytes); }

PackedMatrix pack_floats(const std::vector<FloatSource>& sources, int64_t inputs, const std::vector<Column>& columns,
                         FloatStorage storage) {
  if (storage == FloatStorage::kInt8) return quantise(sources, inputs, columns);
  const bool wide = storage == FloatStorage::kFloat32, pairs = storage == FloatStorage::kBFloat16Pairs;
  const int64_t stored = pairs ? round_up(inputs, 2) : inputs;
  PackedMatrix matrix =
      empty_matrix(wide ? Storage::kFloat32 : pairs ? Storage::kBFloat16Pairs : Storage::kBFloat16, stored,
                   columns.size(), stored * (wide ? 128 : 64));
  constexpr int64_t kStretch = 64;  // inputs at a time, so that the lines written stay in the cache
  for (int64_t tile = 0; tile < matrix.tiles; ++tile) {
    uint8_t* to = matrix.memory.data() + tile * matrix.tile_bytes;
    for (int64_t begin = 0; begin < inputs; begin += kStretch) {
      const int64_t end = std::min(inputs, begin + kStretch);
      for (int64_t lane = 0; lane < std::min<int64_t>(kTileColumns, matrix.columns - tile * kTileColumns); ++lane) {
        const Column& column = columns[static_cast<size_t>(tile * kTileColumns + lane)];
        if (column.source < 0) continue;
        const FloatSource& source = sources[static_cast<size_t>(column.source)];
        const int64_t row = column.row * inputs;
        if (wide) {
          float* values = reinterpret_cast<float*>(to);
          for (int64_t k = begin; k < end; ++k) values[k * 32 + lane] = element(source, row + k);
        } else if (pairs) {
          uint16_t* halves = reinterpret_cast<uint16_t*>(to) + lane * 2;
          for (int64_t k = begin; k < end; ++k)
            halves[k / 2 * 64 + k % 2] = float32_to_normal_bfloat16(element(source, row + k));
        } else {
          uint16_t* halves = reinterpret_cast<uint16_t*>(to) + (lane % 16) * 2 + lane / 16;
          if (source.element == Element::kBFloat16) {
            const uint16_t* from = static_cast<const uint16_t*>(source.data) + row;
            for (int64_t k = begin; k < end; ++k) halves[k * 32] = from[k];
          } else {
            for (int64_t k = begin; k < end; ++k) halves[k * 32] = float32_to_bfloat16(element(source, row + k));
          }
        }
      }
    }
  }
  return matrix;
}

PackedMatrix pack_grouped(const std::vector<GroupedSource>& sources, int64_t inputs,
                          const std::vector<Column>& columns) {
  const int64_t groups = inputs / kGroup;
  bool minimum = false, half = true;
  for (const GroupedSource& source : sources) minimum = minimum || source.minimums;
  for (const Column& column : columns) {
    if (column.source < 0 || !half) continue;
    const GroupedSource& source = sources[static_cast<size_t>(column.source)];
    for (int64_t g = column.row * groups; g < (column.row + 1) * groups; ++g)
      half = half && fits_float16(source.scales[g]) && (!source.minimums || fits_float16(source.minimums[g]));
  }
  const Storage storage = half ? (minimum ? Storage::kInt8HalfMinimum : Storage::kInt8Half)
                               : (minimum ? Storage::kInt8FloatMinimum : Storage::kInt8Float);
  const int64_t bytes = group_bytes(half, minimum);
  PackedMatrix matrix = empty_matrix(storage, inputs, columns.size(), groups * bytes);
  for (int64_t tile = 0; tile < matrix.tiles; ++tile) {
    for (int64_t g = 0; g < groups; ++g) {
      uint8_t* group = matrix.memory.data() + tile * matrix.tile_bytes + g * bytes;
      uint8_t* factors = group + kGroup * kTileColumns;
      for (int lane = 0; lane < std::min<int64_t>(kTileColumns, matrix.columns - tile * kTileColumns); ++lane) {
        const Column& column = columns[static_cast<size_t>(tile * kTileColumns + lane)];
        if (column.source < 0) continue;
        const GroupedSource& source = sources[static_cast<size_t>(column.source)];
        const int8_t* quants = source.quants + column.row * inputs + g * kGroup;
        for (int64_t i = 0; i < kGroup; ++i) reinterpret_cast<int8_t*>(group)[i * kTileColumns + lane] = quants[i];
        put_factor(factors, half, lane, source.scales[column.row * groups + g]);
        if (source.minimums)
          put_factor(factors + factor_bytes(half), half, lane, source.minimums[column.row * groups + g]);
      }
    }
  }
  return matrix;
}

void PackedMatrix::read_column(int64_t column, float* out) const {
  const uint8_t* from = tile(column / kTileColumns);
  const int64_t lane = column % kTileColumns;
  if (storage == Storage::kFloat32) {
    for (int64_t i = 0; i < k; ++i) out[i] = reinterpret_cast<const float*>(from)[i * kTileColumns + lane];
    return;
  }
  if (storage == Storage::kBFloat16) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(from) + (lane % 16) * 2 + lane / 16;
    for (int64_t i = 0; i < k; ++i) out[i] = bfloat16_to_float32(halves[i * kTileColumns]);
    return;
  }
  if (storage == Storage::kBFloat16Pairs) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(from) + lane * 2;
    for (int64_t i = 0; i < k; ++i) out[i] = bfloat16_to_float32(halves[i / 2 * 64 + i % 2]);
    return;
  }
  const bool half = half_scales(storage);
  for (int64_t g = 0; g < k / kGroup; ++g) {
    const uint8_t* group = from + g * group_bytes(half, has_minimum());
    const uint8_t* factors = group + kGroup * kTileColumns;
    const float scale = get_factor(factors, half, lane);
    const float minimum = has_minimum() ? get_factor(factors + factor_bytes(half), half, lane) : 0.0f;
    for (int64_t i = 0; i < kGroup; ++i) {
      const float product = scale * static_cast<float>(reinterpret_cast<const int8_t*>(group)[i * kTileColumns + lane]);
      out[g * kGroup + i] = has_minimum() ? product + minimum : product;
    }
  }
}

}  // namespace pilotfish
