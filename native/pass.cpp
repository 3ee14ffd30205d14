// The execution of a pass. Every thread of the team runs `work`; `share` hands out tiles, rows or blocks and is where
// the threads meet. No unit reads what another unit of the same share writes.
#include "pass.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "numbers.h"

namespace pilotfish {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kMostMaxima = 64;  // rows whose maxima are found together

// The half-and-half form: dimension i turns with dimension i + half.
void rotate(float* vector, const float* cosines, const float* sines, int64_t half) {
  float* second = vector + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = vector[i], b = second[i];
    vector[i] = a * cosines[i] - b * sines[i];
    second[i] = b * cosines[i] + a * sines[i];
  }
}

void add_to(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
}

}  // namespace

void Pass::work(Worker& worker) {
  const int64_t rows = static_cast<int64_t>(rows_.size());
  worker.share(rows, [&](int64_t row, int64_t) {
    float* hidden = hidden_ + row * hidden_stride_;
    if (request_.hidden_in) {
      std::memcpy(hidden, request_.hidden_in + row * spec_.hidden, static_cast<size_t>(spec_.hidden) * sizeof(float));
      return;
    }
    // Grouped storage may be longer than the hidden size, but never than the stride; beyond it holds zeros.
    decoder_.embedding_.read_column(request_.tokens[static_cast<size_t>(row)], hidden);
    const float scale = static_cast<float>(spec_.embedding_scale);
    if (scale != 1.0f)
      for (int64_t i = 0; i < spec_.hidden; ++i) hidden[i] = hidden[i] * scale;
  });
  for (int64_t index = request_.start; index < request_.stop; ++index) layer(worker, index);

  const std::vector<float>* added = nullptr;
  if (spec_.sandwich_norms && request_.stop > request_.start)
    added = &decoder_.layers_[static_cast<size_t>(request_.stop - 1)].norms[static_cast<int>(Norm::kMlpOut)];
  const float epsilon = static_cast<float>(spec_.norm_eps);
  worker.share(rows, [&](int64_t row, int64_t) {
    float* hidden = hidden_ + row * hidden_stride_;
    if (added) {
      float* branch = branch_ + row * hidden_stride_;
      kernels_.rms_norm(branch, added->data(), spec_.hidden, epsilon, branch);
      add_to(hidden, branch, spec_.hidden);
    }
    capture(request_.stop, row);
  });
  if (logit_rows_.empty()) return;
  const PackedMatrix& head = decoder_.head();
  worker.share(static_cast<int64_t>(logit_rows_.size()), [&](int64_t i, int64_t) {
    float* normed = normed_ + i * hidden_stride_;
    kernels_.rms_norm(hidden_ + logit_rows_[static_cast<size_t>(i)] * hidden_stride_, decoder_.final_norm_.data(),
                      spec_.hidden, epsilon, normed);
    ready(head, normed, spec_.hidden, i);
  });
  const PackedMatrix* matrices[] = {&head};
  multiply(worker, matrices, 1, normed_, hidden_stride_, static_cast<int64_t>(logit_rows_.size()), Then::kLogits,
           request_.logits, spec_.vocab, nullptr);
}

void Pass::capture(int64_t boundary, int64_t row) {
  for (size_t i = 0; i < request_.capture.size(); ++i)
    if (request_.capture[i] == boundary)
      std::memcpy(request_.captured[i] + row * spec_.hidden, hidden_ + row * hidden_stride_,
                  static_cast<size_t>(spec_.hidden) * sizeof(float));
}

// normed = norm(hidden), after the branch before (normed itself in the sandwich families) was added to hidden.
void Pass::normalise(Worker& worker, int64_t boundary, const std::vector<float>& weight,
                     const std::vector<float>* added, const PackedMatrix& consumer) {
  const float epsilon = static_cast<float>(spec_.norm_eps);
  worker.share(static_cast<int64_t>(rows_.size()), [&](int64_t row, int64_t) {
    float* hidden = hidden_ + row * hidden_stride_;
    float* normed = normed_ + row * hidden_stride_;
    if (added) {
      float* branch = branch_ + row * hidden_stride_;
      kernels_.rms_norm(branch, added->data(), spec_.hidden, epsilon, branch);
      add_to(hidden, branch, spec_.hidden);
    }
    if (boundary >= 0) capture(boundary, row);
    kernels_.rms_norm(hidden, weight.data(), spec_.hidden, epsilon, normed);
    ready(consumer, normed, spec_.hidden, row);
  });
}

// What a matrix wants of a row of its inputs that is complete.
void Pass::ready(const PackedMatrix& consumer, float* x, int64_t width, int64_t row) {
  if (consumer.has_minimum()) kernels_.group_sums(x, consumer.k / kGroup, sums_ + row * sums_stride_);
  // An odd width has a zero after it, which completes the last pair.
  if (consumer.rounds_inputs()) kernels_.round_bfloat16(x, round_up(width, 2), reinterpret_cast<uint16_t*>(x));
}

void Pass::sums(Worker& worker, const PackedMatrix& consumer, const float* x, int64_t stride) {
  if (!consumer.has_minimum()) return;
  worker.share(static_cast<int64_t>(rows_.size()), [&](int64_t row, int64_t) {
    kernels_.group_sums(x + row * stride, consumer.k / kGroup, sums_ + row * sums_stride_);
  });
}

void Pass::layer(Worker& worker, int64_t index) {
  const Decoder::Layer& layer = decoder_.layers_[static_cast<size_t>(index)];
  const auto place = [&](Place which) { return &layer.places[static_cast<int>(which)]; };
  const auto norm = [](const Decoder::Layer& of, Norm which) -> const std::vector<float>& {
    return of.norms[static_cast<int>(which)];
  };
  const int64_t rows = static_cast<int64_t>(rows_.size());
  const bool sandwich = spec_.sandwich_norms;

  // Whichever of the three wants something of its inputs; they have the same ones.
  const PackedMatrix* qkv[] = {place(Place::kQuery), place(Place::kKey), place(Place::kValue)};
  const PackedMatrix* needy = qkv[0];
  for (const PackedMatrix* each : qkv)
    if (each->has_minimum() || each->rounds_inputs()) needy = each;
  normalise(worker, index, norm(layer, Norm::kAttentionIn),
            sandwich && index > request_.start
                ? &norm(decoder_.layers_[static_cast<size_t>(index - 1)], Norm::kMlpOut)
                : nullptr,
            *needy);
  multiply(worker, qkv, 3, normed_, hidden_stride_, rows, Then::kStore, qkv_, qkv_stride_, place(Place::kOutput));
  worker.share(rows, [&](int64_t row, int64_t) { rotate_and_write(index, row); });
  attention(worker, index);

  const PackedMatrix* output[] = {place(Place::kOutput)};
  sums(worker, *output[0], attended_, attended_stride_);
  multiply(worker, output, 1, attended_, attended_stride_, rows, sandwich ? Then::kStore : Then::kAddTo,
           sandwich ? branch_ : hidden_, hidden_stride_, place(Place::kGateUp));
  const PackedMatrix* gate_up[] = {place(Place::kGateUp)};
  normalise(worker, -1, norm(layer, Norm::kMlpIn), sandwich ? &norm(layer, Norm::kAttentionOut) : nullptr,
            *gate_up[0]);
  multiply(worker, gate_up, 1, normed_, hidden_stride_, rows, Then::kGate, gated_, gated_stride_,
           place(Place::kDown));

  const PackedMatrix* down[] = {place(Place::kDown)};
  sums(worker, *down[0], gated_, gated_stride_);
  const bool last = index + 1 == static_cast<int64_t>(spec_.layers.size());
  multiply(worker, down, 1, gated_, gated_stride_, rows, sandwich ? Then::kStore : Then::kAddTo,
           sandwich ? branch_ : hidden_, hidden_stride_,
           last ? &decoder_.head() : &decoder_.layers_[static_cast<size_t>(index + 1)].places[0]);
}

void Pass::rotate_and_write(int64_t index, int64_t row) {
  const Decoder::Layer& layer = decoder_.layers_[static_cast<size_t>(index)];
  const LayerSpec& layer_spec = spec_.layers[static_cast<size_t>(index)];
  const int64_t dim = spec_.padded_dim(), half = spec_.head_dim / 2;
  const Row& at = rows_[static_cast<size_t>(row)];
  const float *cosines = nullptr, *sines = nullptr;
  if (layer_spec.rope >= 0) {
    const Decoder::RopeTable& table = decoder_.rope_tables_[static_cast<size_t>(layer_spec.rope)];
    cosines = table.cosines.data() + at.position * half;
    sines = table.sines.data() + at.position * half;
  }
  const auto prepare = [&](float* vector, Norm which) {
    if (spec_.qk_norm)
      kernels_.rms_norm(vector, layer.norms[static_cast<int>(which)].data(), spec_.head_dim,
                        static_cast<float>(spec_.norm_eps), vector);
    if (cosines) rotate(vector, cosines, sines, half);
  };
  const float scale = static_cast<float>(spec_.query_scale);
  float* queries = qkv_ + row * qkv_stride_;
  for (int64_t head = 0; head < spec_.heads; ++head) {
    float* query = queries + head * dim;
    prepare(query, Norm::kQuery);
    for (int64_t d = 0; d < spec_.head_dim; ++d) query[d] = query[d] * scale;
  }
  float* keys = queries + spec_.heads * dim;
  const float* values = keys + spec_.kv_heads * dim;
  for (int64_t head = 0; head < spec_.kv_heads; ++head) {
    prepare(keys + head * dim, Norm::kKey);
    decoder_.cache_.write(*at.sequence, at.slot, index, head, keys + head * dim, values + head * dim);
  }
}

void Pass::attention(Worker& worker, int64_t index) {
  const int64_t dim = spec_.padded_dim(), group = spec_.heads / spec_.kv_heads;
  const PackedMatrix& consumer =
      decoder_.layers_[static_cast<size_t>(index)].places[static_cast<int>(Place::kOutput)];
  // A thread's units follow each other head by head: the next block of a sequence finds the head's pages in its cache.
  const int64_t blocks = static_cast<int64_t>(blocks_.size());
  worker.share(blocks * spec_.kv_heads, [&](int64_t unit, int64_t) {
    const Block& block = blocks_[static_cast<size_t>(unit % blocks)];
    const int64_t kv_head = unit / blocks, queries = block.rows * group;
    const Sequence& sequence = *rows_[static_cast<size_t>(block.first_row)].sequence;
    float* query = scratch(worker);
    float* out = query + block_rows_ * group * dim;
    for (int64_t row = 0; row < block.rows; ++row)
      std::memcpy(query + row * group * dim, qkv_ + (block.first_row + row) * qkv_stride_ + kv_head * group * dim,
                  static_cast<size_t>(group * dim) * sizeof(float));
    AttendArgs args{};
    args.pages = sequence.pages.data();
    args.key_offset = decoder_.cache_.key_offset(index, kv_head);
    args.value_offset = decoder_.cache_.value_offset(index, kv_head);
    args.head_dim = spec_.head_dim;
    args.padded_dim = dim;
    args.rows = block.rows;
    args.heads = group;
    args.position = positions_.data() + block.first_row;
    args.window = spec_.layers[static_cast<size_t>(index)].window;
    args.committed = sequence.length;
    const int32_t* paths[kMostBlockRows];
    for (size_t row = 0; row < block.paths.size(); ++row) {
      paths[row] = block.paths[row].data();
      args.last_node = std::max<int64_t>(args.last_node, block.paths[row].back());
    }
    args.paths = block.paths.empty() ? nullptr : paths;
    args.query = query;
    args.out = out;
    args.scratch = out + block_rows_ * group * dim;
    kernels_.attend(args);
    for (int64_t q = 0; q < queries; ++q) {
      float* attended = attended_ + (block.first_row + q / group) * attended_stride_;
      const int64_t first = (kv_head * group + q % group) * spec_.head_dim;
      if (consumer.rounds_inputs())
        kernels_.round_bfloat16(out + q * dim, spec_.head_dim, reinterpret_cast<uint16_t*>(attended) + first);
      else
        std::memcpy(attended + first, out + q * dim, static_cast<size_t>(spec_.head_dim) * sizeof(float));
    }
  });
}

// The highest logit of each row within a tile. `logits` has room for whole tiles.
void Pass::note_maxima(float* logits, int64_t rows, int64_t tile, int64_t width, int64_t tiles) {
  for (int64_t row = 0; row < rows; ++row)
    std::fill(logits + row * kTileColumns + width, logits + (row + 1) * kTileColumns, kMinusInfinity);
  float maxima[kMostMaxima];
  for (int64_t first = 0; first < rows; first += kMostMaxima) {
    const int64_t count = std::min<int64_t>(kMostMaxima, rows - first);
    const bool regular = kernels_.block_maxima(logits + first * kTileColumns, count, maxima);
    for (int64_t row = first; row < first + count; ++row) {
      float ignored, *to = request_.maxima + row * tiles + tile;
      *to = regular || kernels_.block_maxima(logits + row * kTileColumns, 1, &ignored) ? maxima[row - first]
                                                                                       : -kMinusInfinity;
    }
  }
}

// out = x times the matrices, whose columns follow one another; `following` is multiplied next and brought near. After a
// gate it is the matrix that reads `out`.
void Pass::multiply(Worker& worker, const PackedMatrix* const* matrices, int count, const float* x, int64_t x_stride,
                    int64_t rows, Then then, float* out, int64_t out_stride, const PackedMatrix* following) {
  int64_t total = 0;
  for (int m = 0; m < count; ++m) total += matrices[m]->tiles;
  const auto locate = [&](int64_t unit, int64_t* first_column) {
    int m = 0;
    *first_column = 0;
    for (; unit >= matrices[m]->tiles; ++m) {
      unit -= matrices[m]->tiles;
      *first_column += matrices[m]->columns;
    }
    return std::make_pair(matrices[m], unit);
  };
  worker.share(total, [&](int64_t unit, int64_t next) {
    int64_t base = 0, ignored = 0;
    const auto [matrix, tile] = locate(unit, &base);
    LinearArgs args{};
    args.storage = matrix->storage;
    args.tile = matrix->tile(tile);
    args.k = matrix->k;
    args.tile_bytes = matrix->tile_bytes;
    args.rows = rows;
    args.x = x;
    args.x_stride = x_stride;
    args.group_sums = matrix->has_minimum() ? sums_ : nullptr;
    args.sums_stride = sums_stride_;
    args.out = scratch(worker);
    if (next >= 0) {
      const auto [next_matrix, next_tile] = locate(next, &ignored);
      args.prefetch = next_matrix->tile(next_tile);
    } else if (following) {
      const int64_t first = worker.first_of(following->tiles);
      if (first >= 0) args.prefetch = following->tile(first);
    }
    kernels_.linear(args);

    const int64_t column = tile * kTileColumns;
    const int64_t width = std::min<int64_t>(kTileColumns, matrix->columns - column);
    if (!matrix->bias.empty())
      for (int64_t row = 0; row < rows; ++row)
        add_to(args.out + row * kTileColumns, matrix->bias.data() + column, kTileColumns);
    if (then == Then::kGate) {
      if (!following->rounds_inputs()) {
        kernels_.gate(spec_.activation, args.out, rows, out + tile * 16, out_stride);
        return;
      }
      kernels_.gate(spec_.activation, args.out, rows, args.out, kTileColumns);  // over the gates, which it has read
      for (int64_t row = 0; row < rows; ++row)
        kernels_.round_bfloat16(args.out + row * kTileColumns, 16,
                                reinterpret_cast<uint16_t*>(out + row * out_stride) + tile * 16);
      return;
    }
    if (then == Then::kLogits && request_.maxima) note_maxima(args.out, rows, tile, width, matrix->tiles);
    float* to = out + base + column;
    for (int64_t row = 0; row < rows; ++row, to += out_stride) {
      if (then == Then::kAddTo)
        add_to(to, args.out + row * kTileColumns, width);
      else
        std::memcpy(to, args.out + row * kTileColumns, static_cast<size_t>(width) * sizeof(float));
    }
  });
}

}  // namespace pilotfish
