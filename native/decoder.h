// A Llama-like decoder on the CPU: packed weights, a paged cache, and one call per forward pass.
//
// Owns the meaning of rows, nodes and layer ranges (the contract is written down in models/base.py). Knows no PyTorch
// and no Python; tensors come and go as plain memory.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "cpu.h"
#include "packing.h"

namespace pilotfish {

struct Rope {
  std::vector<double> inv_freq;
  double attention_factor = 1.0;
};

struct LayerSpec {
  int64_t rope = -1;   // index into DecoderSpec::ropes, -1 without positions
  int64_t window = 0;  // latest positions seen, 0 for all
};

struct DecoderSpec {
  int64_t vocab = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double norm_eps = 0.0, query_scale = 1.0, embedding_scale = 1.0;
  Activation activation = Activation::kSilu;
  bool qk_norm = false, sandwich_norms = false;
  std::vector<LayerSpec> layers;
  std::vector<Rope> ropes;

  int64_t padded_dim() const { return (head_dim + 15) / 16 * 16; }
};

// Linear layers by place. Gate and up projection share tiles, 16 columns of each.
enum class Place : int { kQuery, kKey, kValue, kOutput, kGateUp, kDown, kEmbedding, kHead };
constexpr int kLayerPlaces = 6;

enum class Norm : int { kAttentionIn, kAttentionOut, kMlpIn, kMlpOut, kQuery, kKey, kFinal };
constexpr int kLayerNorms = 6;

struct SegmentRequest {
  int64_t sequence = 0;
  int64_t rows = 0;
  int64_t first_node = 0;
  bool chain = true;  // parents are the nodes before; otherwise they are in PassRequest::parents
  int64_t logits_from = 0;  // final norm and head run on this row and those after it
};

struct PassRequest {
  std::vector<SegmentRequest> segments;
  std::vector<int64_t> tokens;   // of all segments
  std::vector<int64_t> parents;  // of the segments that are not chains
  int64_t start = 0, stop = 0;   // layers
  const float* hidden_in = nullptr;  // [row][hidden], where start > 0
  std::vector<int64_t> capture;      // layer boundaries
  float* logits = nullptr;           // [logit row][vocab]
  float* maxima = nullptr;           // [logit row][tile of the head], if wanted: the highest logit there, +inf where one is NaN
  int64_t logit_rows = 0;            // rows of `logits`, as many as the segments ask for
  std::vector<float*> captured;      // one [row][hidden] for each boundary
};

class Decoder {
 public:
  Decoder(DecoderSpec spec, int threads, int64_t cache_pages);

  // Loading. `layer` is ignored for embedding, head and final norm.
  void set_norm(int64_t layer, Norm norm, const float* values, int64_t count);
  void pack(int64_t layer, Place place, const std::vector<FloatSource>& sources, FloatStorage storage,
            const std::vector<std::vector<float>>& biases);
  void pack(int64_t layer, Place place, const std::vector<GroupedSource>& sources,
            const std::vector<std::vector<float>>& biases);
  void tie_head() { tied_ = true; }
  // Throws a TensorFault that names the first place without weights.
  void check_loaded() const;

  int64_t open(int64_t capacity);
  void close(int64_t sequence);
  int64_t length(int64_t sequence);
  int64_t nodes(int64_t sequence);
  void keep(int64_t sequence, const std::vector<int64_t>& path);
  void truncate(int64_t sequence, int64_t length);
  int64_t share(int64_t sequence, int64_t block);
  void adopt(int64_t sequence, const std::vector<int64_t>& pages);
  void release(int64_t page);
  void limit_pages(int64_t pages);
  void forward(const PassRequest& request);

  const DecoderSpec& spec() const { return spec_; }
  const KvCache& cache() const { return cache_; }
  int threads() const { return threads_; }
  int64_t weight_bytes() const;

 private:
  friend class Pass;
  struct Layer {
    PackedMatrix places[kLayerPlaces];
    std::vector<float> norms[kLayerNorms];
  };
  // The cosines and sines of one rope, [position][head_dim / 2], as far as they were needed.
  struct RopeTable {
    std::vector<float> cosines, sines;
  };
  // Memory that passes use again.
  struct Buffer {
    Memory memory;
    float* get(int64_t floats);
  };
  class Turn;

  PackedMatrix& matrix(int64_t layer, Place place);
  std::vector<Column> columns_of(Place place) const;
  int64_t inputs_of(Place place) const;
  static std::vector<float> packed_bias(const std::vector<Column>& columns,
                                        const std::vector<std::vector<float>>& biases);
  void extend_ropes(int64_t positions);
  const PackedMatrix& head() const { return tied_ ? embedding_ : head_; }

  DecoderSpec spec_;
  int threads_;
  KvCache cache_;
  std::vector<Layer> layers_;
  PackedMatrix embedding_, head_;
  std::vector<float> final_norm_;
  bool tied_ = false;
  std::vector<RopeTable> rope_tables_;
  Buffer workspace_;
  std::atomic<int> user_{0};  // the process that is inside, so that a fork in the middle of a pass does not lock it
};

}  // namespace pilotfish
