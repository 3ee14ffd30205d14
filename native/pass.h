// One forward pass: the plan of its rows, made and checked before anything changes, and its execution by a team.
#pragma once
#include <vector>

#include "decoder.h"
#include "pool.h"

namespace pilotfish {

constexpr int64_t kMostBlockRows = 8;

class Pass {
 public:
  // Throws a RowsFault or CacheFullFault, with nothing changed, where the request cannot be met.
  Pass(Decoder& decoder, const PassRequest& request);
  void run();

 private:
  struct Segment {
    Sequence* sequence;
    std::vector<Node> nodes;  // of the sequence after the pass
  };
  struct Row {
    const Sequence* sequence;
    int64_t position, slot;
  };
  // Rows that one unit of attention computes together: a run of a chain, or of a tree.
  struct Block {
    int64_t first_row, rows;
    std::vector<std::vector<int32_t>> paths;  // for a tree: of each row the nodes from the root to it
  };
  // What a linear layer does with its result.
  enum class Then { kStore, kLogits, kAddTo, kGate };

  void plan();
  void plan_segment(const SegmentRequest& wanted, size_t first_row, const int64_t* parents);
  void plan_blocks();
  void lay_out();
  void work(Worker& worker);
  void layer(Worker& worker, int64_t index);
  void rotate_and_write(int64_t index, int64_t row);
  void attention(Worker& worker, int64_t index);
  void normalise(Worker& worker, int64_t boundary, const std::vector<float>& weight, const std::vector<float>* added,
                 const PackedMatrix& consumer);
  void ready(const PackedMatrix& consumer, float* x, int64_t width, int64_t row);
  void sums(Worker& worker, const PackedMatrix& consumer, const float* x, int64_t stride);
  void multiply(Worker& worker, const PackedMatrix* const* matrices, int count, const float* x, int64_t x_stride,
                int64_t rows, Then then, float* out, int64_t out_stride, const PackedMatrix* following);
  void note_maxima(float* logits, int64_t rows, int64_t tile, int64_t width, int64_t tiles);
  void capture(int64_t boundary, int64_t row);
  float* scratch(const Worker& worker) { return scratch_ + worker.id() * scratch_floats_; }

  Decoder& decoder_;
  const PassRequest& request_;
  const DecoderSpec& spec_;
  const KernelTable& kernels_;
  std::vector<Segment> segments_;
  std::vector<Row> rows_;
  std::vector<int64_t> positions_, logit_rows_;
  std::vector<Block> blocks_;
  int64_t most_nodes_ = 0, last_position_ = -1, block_rows_ = 1;

  // The workspace: [row][stride] each, zero beyond the true width. What only matrices read that round their inputs (normed,
  // attended, gated) holds bfloat16 from the beginning of each row.
  int64_t hidden_stride_ = 0, qkv_stride_ = 0, attended_stride_ = 0, gated_stride_ = 0, sums_stride_ = 0;
  int64_t scratch_floats_ = 0;
  float *hidden_ = nullptr, *normed_ = nullptr, *branch_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr,
        *gated_ = nullptr, *sums_ = nullptr, *scratch_ = nullptr;
};

}  // namespace pilotfish
