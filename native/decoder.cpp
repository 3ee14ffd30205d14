#include "decoder.h"

#include <unistd.h>

#include <cmath>
#include <type_traits>

#include "faults.h"
#include "numbers.h"
#include "pass.h"

namespace pilotfish {

// One user at a time: a second thread is refused rather than left to damage the cache.
class Decoder::Turn {
 public:
  explicit Turn(Decoder& decoder) : user_(decoder.user_) {
    const int process = static_cast<int>(getpid());
    int before = user_.load();
    if (before == process || !user_.compare_exchange_strong(before, process))
      fail<BusyFault>("the executor is in use by another thread; expected one call at a time, serialise the calls");
  }
  ~Turn() { user_.store(0); }
  Turn(const Turn&) = delete;

 private:
  std::atomic<int>& user_;
};

float* Decoder::Buffer::get(int64_t floats) {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (memory.size() < bytes) {
    memory = Memory();
    memory = Memory(bytes + bytes / 4);
  }
  return reinterpret_cast<float*>(memory.data());
}

Decoder::Decoder(DecoderSpec spec, int threads, int64_t cache_pages)
    : spec_(std::move(spec)),
      threads_(threads),
      cache_(static_cast<int64_t>(spec_.layers.size()), spec_.kv_heads, spec_.head_dim, spec_.padded_dim(),
             cache_pages),
      layers_(spec_.layers.size()),
      rope_tables_(spec_.ropes.size()) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1 || value > (int64_t{1} << 31)) fail<RowsFault>(name, " is ", value, "; expected 1 or more");
  };
  positive("vocab_size", spec_.vocab);
  positive("hidden_size", spec_.hidden);
  positive("intermediate_size", spec_.intermediate);
  positive("num_heads", spec_.heads);
  positive("num_kv_heads", spec_.kv_heads);
  positive("head_dim", spec_.head_dim);
  if (spec_.heads % spec_.kv_heads != 0)
    fail<RowsFault>("num_heads is ", spec_.heads, ", not a multiple of num_kv_heads, ", spec_.kv_heads);
  if (threads < 1 || threads > 512) fail<RowsFault>("threads is ", threads, "; expected 1 to 512");
  if (cache_pages < 1) fail<RowsFault>("the cache has ", cache_pages, " pages; expected 1 or more");
  for (const LayerSpec& layer : spec_.layers) {
    if (layer.window < 0) fail<RowsFault>("sliding_window is ", layer.window, "; expected 1 or more, or none");
    if (layer.rope < -1 || layer.rope >= static_cast<int64_t>(spec_.ropes.size()))
      fail<RowsFault>("a layer names rope ", layer.rope, "; there are ", spec_.ropes.size());
  }
  for (const Rope& rope : spec_.ropes)
    if (static_cast<int64_t>(rope.inv_freq.size()) * 2 != spec_.head_dim)
      fail<RowsFault>("inv_freq has ", rope.inv_freq.size(), " entries; expected half of head_dim, ", spec_.head_dim);
}

PackedMatrix& Decoder::matrix(int64_t layer, Place place) {
  if (place == Place::kEmbedding) return embedding_;
  if (place == Place::kHead) return head_;
  if (layer < 0 || layer >= static_cast<int64_t>(layers_.size()))
    fail<RowsFault>("layer ", layer, " does not exist; the decoder has ", layers_.size());
  return layers_[static_cast<size_t>(layer)].places[static_cast<int>(place)];
}

int64_t Decoder::inputs_of(Place place) const {
  if (place == Place::kOutput) return spec_.heads * spec_.head_dim;
  if (place == Place::kDown) return spec_.intermediate;
  return spec_.hidden;
}

std::vector<Column> Decoder::columns_of(Place place) const {
  std::vector<Column> columns;
  const auto plain = [&](int64_t count) {
    for (int64_t row = 0; row < count; ++row) columns.push_back({0, row});
  };
  const auto by_head = [&](int64_t heads) {  // each head padded to whole vectors
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t d = 0; d < spec_.padded_dim(); ++d)
        columns.push_back(d < spec_.head_dim ? Column{0, head * spec_.head_dim + d} : Column{});
  };
  switch (place) {
    case Place::kQuery: by_head(spec_.heads); break;
    case Place::kKey:
    case Place::kValue: by_head(spec_.kv_heads); break;
    case Place::kOutput:
    case Place::kDown: plain(spec_.hidden); break;
    case Place::kEmbedding:
    case Place::kHead: plain(spec_.vocab); break;
    case Place::kGateUp:
      for (int64_t start = 0; start < spec_.intermediate; start += 16)
        for (int source = 0; source < 2; ++source)
          for (int64_t row = start; row < start + 16; ++row)
            columns.push_back(row < spec_.intermediate ? Column{source, row} : Column{});
      break;
  }
  return columns;
}

std::vector<float> Decoder::packed_bias(const std::vector<Column>& columns,
                                        const std::vector<std::vector<float>>& biases) {
  if (biases.empty()) return {};
  std::vector<float> packed(static_cast<size_t>(round_up(static_cast<int64_t>(columns.size()), kTileColumns)));
  for (size_t c = 0; c < columns.size(); ++c)
    if (columns[c].source >= 0)
      packed[c] = biases.at(static_cast<size_t>(columns[c].source)).at(static_cast<size_t>(columns[c].row));
  return packed;
}

void Decoder::pack(int64_t layer, Place place, const std::vector<FloatSource>& sources, FloatStorage storage,
                   const std::vector<std::vector<float>>& biases) {
  const std::vector<Column> columns = columns_of(place);
  PackedMatrix packed = pack_floats(sources, inputs_of(place), columns, storage);
  packed.bias = packed_bias(columns, biases);
  matrix(layer, place) = std::move(packed);
}

void Decoder::pack(int64_t layer, Place place, const std::vector<GroupedSource>& sources,
                   const std::vector<std::vector<float>>& biases) {
  const std::vector<Column> columns = columns_of(place);
  if (inputs_of(place) % kGroup != 0)
    fail<TensorFault>("a matrix of ", inputs_of(place), " inputs cannot be in groups of ", kGroup);
  PackedMatrix packed = pack_grouped(sources, inputs_of(place), columns);
  packed.bias = packed_bias(columns, biases);
  matrix(layer, place) = std::move(packed);
}

void Decoder::set_norm(int64_t layer, Norm norm, const float* values, int64_t count) {
  const bool by_head = norm == Norm::kQuery || norm == Norm::kKey;
  const int64_t expected = by_head ? spec_.head_dim : spec_.hidden;
  if (count != expected) fail<TensorFault>("a norm has ", count, " weights; expected ", expected);
  std::vector<float> padded(static_cast<size_t>(round_up(count, 32)));
  std::copy(values, values + count, padded.begin());
  if (norm == Norm::kFinal) {
    final_norm_ = std::move(padded);
    return;
  }
  if (layer < 0 || layer >= static_cast<int64_t>(layers_.size()))
    fail<RowsFault>("layer ", layer, " does not exist; the decoder has ", layers_.size());
  layers_[static_cast<size_t>(layer)].norms[static_cast<int>(norm)] = std::move(padded);
}

void Decoder::check_loaded() const {
  const auto need = [](bool present, const std::string& what) {
    if (!present) fail<TensorFault>("no weights were given for the ", what);
  };
  need(embedding_.loaded(), "embedding");
  need(tied_ || head_.loaded(), "head");
  need(!final_norm_.empty(), "final norm");
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string where = " of layer " + std::to_string(i);
    for (const PackedMatrix& place : layers_[i].places) need(place.loaded(), "linear layers" + where);
    for (int n = 0; n < kLayerNorms; ++n) {
      const Norm norm = static_cast<Norm>(n);
      const bool sandwich = norm == Norm::kAttentionOut || norm == Norm::kMlpOut;
      const bool by_head = norm == Norm::kQuery || norm == Norm::kKey;
      if ((sandwich && !spec_.sandwich_norms) || (by_head && !spec_.qk_norm)) continue;
      need(!layers_[i].norms[n].empty(), "norms" + where);
    }
  }
}

int64_t Decoder::weight_bytes() const {
  size_t bytes = embedding_.memory.size() + head_.memory.size();
  for (const Layer& layer : layers_)
    for (const PackedMatrix& place : layer.places) bytes += place.memory.size();
  return static_cast<int64_t>(bytes);
}

void Decoder::extend_ropes(int64_t positions) {
  const int64_t half = spec_.head_dim / 2;
  for (size_t r = 0; r < rope_tables_.size(); ++r) {
    RopeTable& table = rope_tables_[r];
    const int64_t known = static_cast<int64_t>(table.cosines.size()) / half;
    if (positions <= known) continue;
    const int64_t wanted = std::max(round_up(positions, 256), known + known / 2);
    const size_t entries = static_cast<size_t>(wanted * half);
    table.cosines.resize(entries);
    table.sines.resize(entries);
    const Rope& rope = spec_.ropes[r];
    for (int64_t position = known; position < wanted; ++position) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * rope.inv_freq[static_cast<size_t>(i)];
        table.cosines[static_cast<size_t>(position * half + i)] =
            static_cast<float>(std::cos(angle) * rope.attention_factor);
        table.sines[static_cast<size_t>(position * half + i)] =
            static_cast<float>(std::sin(angle) * rope.attention_factor);
      }
    }
  }
}

int64_t Decoder::open(int64_t capacity) {
  Turn turn(*this);
  return cache_.open(capacity);
}

void Decoder::close(int64_t sequence) {
  Turn turn(*this);
  cache_.close(sequence);
}

int64_t Decoder::length(int64_t sequence) {
  Turn turn(*this);
  return cache_.at(sequence).length;
}

int64_t Decoder::nodes(int64_t sequence) {
  Turn turn(*this);
  return static_cast<int64_t>(cache_.at(sequence).nodes.size());
}

void Decoder::keep(int64_t sequence, const std::vector<int64_t>& path) {
  Turn turn(*this);
  cache_.keep(cache_.at(sequence), path);
}

void Decoder::truncate(int64_t sequence, int64_t length) {
  Turn turn(*this);
  cache_.truncate(cache_.at(sequence), length);
}

int64_t Decoder::share(int64_t sequence, int64_t block) {
  Turn turn(*this);
  return cache_.share(cache_.at(sequence), block);
}

void Decoder::adopt(int64_t sequence, const std::vector<int64_t>& pages) {
  Turn turn(*this);
  cache_.adopt(cache_.at(sequence), pages);
}

void Decoder::release(int64_t page) {
  Turn turn(*this);
  cache_.release(page);
}

void Decoder::limit_pages(int64_t pages) {
  Turn turn(*this);
  cache_.limit(pages);
}

void Decoder::forward(const PassRequest& request) {
  Turn turn(*this);
  check_loaded();
  Pass(*this, request).run();
}

}  // namespace pilotfish
