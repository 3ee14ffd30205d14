// The plan of a pass: every number that came from outside is checked here, before anything changes.
#include <algorithm>

#include "faults.h"
#include "numbers.h"
#include "pass.h"

namespace pilotfish {

Pass::Pass(Decoder& decoder, const PassRequest& request)
    : decoder_(decoder), request_(request), spec_(decoder.spec_), kernels_(kernels()) {
  plan();
}

void Pass::plan() {
  const int64_t layers = static_cast<int64_t>(spec_.layers.size());
  const int64_t start = request_.start, stop = request_.stop;
  if (start < 0 || stop <= start || stop > layers)
    fail<RowsFault>("layers (", start, ", ", stop, ") is not a range within the model's ", layers);
  if (start > 0 && !request_.hidden_in)
    fail<RowsFault>("layers from ", start, " on need hidden_in, the rows' hidden states at that boundary");
  if (start == 0 && request_.hidden_in)
    fail<RowsFault>("hidden_in was given, but the pass starts at layer 0 from the tokens; leave it out");
  if (request_.segments.empty()) fail<RowsFault>("a pass needs at least one segment");
  for (int64_t boundary : request_.capture)
    if (boundary < start || boundary > stop)
      fail<RowsFault>("capture names boundary ", boundary, "; expected one within [", start, ", ", stop, "]");

  size_t first_row = 0, first_parent = 0;
  segments_.reserve(request_.segments.size());
  for (const SegmentRequest& wanted : request_.segments) {
    const size_t count = static_cast<size_t>(wanted.rows);
    if (wanted.rows < 1)
      fail<RowsFault>("a segment has no tokens; leave the sequence out of the pass instead");
    if (wanted.logits_from < 0 || wanted.logits_from > wanted.rows)
      fail<RowsFault>("logits_from is ", wanted.logits_from, "; expected 0 to ", wanted.rows, ", the number of rows");
    if (count > request_.tokens.size() - first_row ||
        (!wanted.chain && count > request_.parents.size() - first_parent))
      fail<RowsFault>("a segment has ", wanted.rows, " rows; fewer tokens or parents were given");
    plan_segment(wanted, first_row, request_.parents.data() + first_parent);
    first_row += count;
    if (!wanted.chain) first_parent += count;
  }
  int64_t missing = 0;
  for (const Segment& segment : segments_)
    missing += decoder_.cache_.missing(*segment.sequence,
                                       segment.sequence->length + static_cast<int64_t>(segment.nodes.size()));
  if (missing > decoder_.cache_.free_pages())
    fail<CacheFullFault>("the pass needs ", missing, " more pages of the cache; ", decoder_.cache_.free_pages(), " of ",
                         decoder_.cache_.total_pages(), " are free");
  if (static_cast<int64_t>(logit_rows_.size()) != request_.logit_rows)
    fail<RowsFault>("logits has ", request_.logit_rows, " rows; the segments ask for ", logit_rows_.size());
  plan_blocks();
}

void Pass::plan_segment(const SegmentRequest& wanted, size_t first_row, const int64_t* parents) {
  Sequence& sequence = decoder_.cache_.at(wanted.sequence);
  for (const Segment& other : segments_)
    if (other.sequence == &sequence)
      fail<RowsFault>("sequence ", wanted.sequence, " has two segments; expected at most one in a pass");
  const int64_t known = static_cast<int64_t>(sequence.nodes.size());
  if (wanted.first_node < 0 || wanted.first_node > known)
    fail<RowsFault>("first_node is ", wanted.first_node, "; sequence ", wanted.sequence, " has ", known, " nodes");
  const int64_t slots = sequence.length + wanted.first_node + wanted.rows;
  if (slots > sequence.capacity)
    fail<CacheFullFault>("sequence ", wanted.sequence, " needs ", slots, " positions; it was opened for ",
                         sequence.capacity);

  const int32_t stop = static_cast<int32_t>(request_.stop);
  if (sequence.length > 0 && sequence.committed_layers.back() < stop)
    fail<RowsFault>("layers up to ", stop, " were asked for, but the committed tokens of sequence ", wanted.sequence,
                    " went through ", sequence.committed_layers.back(),
                    " layers only; truncate it and run them again through all layers");
  if (request_.start > 0 && wanted.first_node + wanted.rows > known)
    fail<RowsFault>("layers from ", request_.start, " on were asked for nodes up to ",
                    wanted.first_node + wanted.rows - 1, ", but sequence ", wanted.sequence, " has ", known,
                    " nodes; run the rows through the earlier layers first");

  Segment segment{&sequence, {sequence.nodes.begin(), sequence.nodes.begin() + wanted.first_node}};
  for (int64_t i = 0; i < wanted.rows; ++i) {
    const int64_t node = wanted.first_node + i;
    const int64_t token = request_.tokens[first_row + static_cast<size_t>(i)];
    const int64_t parent = wanted.chain ? node - 1 : parents[i];
    if (token < 0 || token >= spec_.vocab)
      fail<RowsFault>("token id ", token, " is out of range; the vocabulary has ", spec_.vocab, " tokens");
    if (parent < -1 || parent >= node)
      fail<RowsFault>("node ", node, " has parent ", parent, "; expected an earlier node, or -1 for the prefix");
    const Node* above = parent < 0 ? nullptr : &segment.nodes[static_cast<size_t>(parent)];
    if (above && above->layers < stop)
      fail<RowsFault>("layers up to ", stop, " were asked for node ", node, ", but its parent ", parent,
                      " went through ", above->layers, " only; run the parent through them in this pass or before");
    if (request_.start > 0) {
      const Node& before = sequence.nodes[static_cast<size_t>(node)];
      if (before.parent != parent || before.layers < request_.start)
        fail<RowsFault>("node ", node, " is to go on at layer ", request_.start, " below parent ", parent,
                        ", but went through ", before.layers, " layers below parent ", before.parent,
                        "; run the same rows through the earlier layers first");
    }
    const int32_t depth = above ? above->depth + 1 : 0;
    segment.nodes.push_back({static_cast<int32_t>(parent), depth, stop});
    rows_.push_back({&sequence, sequence.length + depth, sequence.length + node});
    positions_.push_back(sequence.length + depth);
    last_position_ = std::max(last_position_, sequence.length + depth);
  }
  for (int64_t i = wanted.logits_from; i < wanted.rows; ++i)
    logit_rows_.push_back(static_cast<int64_t>(first_row) + i);
  most_nodes_ = std::max(most_nodes_, static_cast<int64_t>(segment.nodes.size()));
  segments_.push_back(std::move(segment));
}

void Pass::plan_blocks() {
  // High blocks read each page fewer times, so there are no more of them than give every thread an equal part.
  const int64_t rows = static_cast<int64_t>(rows_.size()), threads = decoder_.threads_;
  int64_t parts = 1;
  const auto idle = [&] { return round_up(parts * spec_.kv_heads, threads) - parts * spec_.kv_heads; };
  while (parts < rows && 8 * idle() > parts * spec_.kv_heads) ++parts;
  block_rows_ = std::clamp<int64_t>((rows + parts - 1) / parts, 1, kMostBlockRows);
  int64_t row = 0;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    const int64_t count = request_.segments[s].rows, first_node = request_.segments[s].first_node;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = first_node + i;
      // All earlier nodes are ancestors: slots are positions.
      const bool straight = segment.nodes[static_cast<size_t>(node)].depth == node;
      Block* block = blocks_.empty() ? nullptr : &blocks_.back();
      const bool joins = i > 0 && block->rows < block_rows_ && block->paths.empty() == straight;
      if (!joins) block = &blocks_.emplace_back(Block{row + i, 0, {}});
      ++block->rows;
      if (straight) continue;
      std::vector<int32_t>& path = block->paths.emplace_back();
      for (int64_t at = node; at >= 0; at = segment.nodes[static_cast<size_t>(at)].parent)
        path.push_back(static_cast<int32_t>(at));
      std::reverse(path.begin(), path.end());
    }
    row += count;
  }
}

void Pass::lay_out() {
  for (size_t s = 0; s < segments_.size(); ++s)
    decoder_.cache_.provide(*segments_[s].sequence, segments_[s].sequence->length +
                                                        static_cast<int64_t>(segments_[s].nodes.size()));
  decoder_.extend_ropes(last_position_ + 1);

  const int64_t rows = static_cast<int64_t>(rows_.size()), group = spec_.heads / spec_.kv_heads;
  const int64_t queries = block_rows_ * group;
  hidden_stride_ = round_up(spec_.hidden, 32);
  qkv_stride_ = round_up((spec_.heads + 2 * spec_.kv_heads) * spec_.padded_dim(), 32);
  attended_stride_ = round_up(spec_.heads * spec_.head_dim, 32);
  gated_stride_ = round_up(spec_.intermediate, 32);
  sums_stride_ = round_up(std::max({hidden_stride_, attended_stride_, gated_stride_}) / kGroup, 16);
  scratch_floats_ = round_up(std::max(rows * kTileColumns, 2 * queries * spec_.padded_dim() +
                                                               attend_scratch(block_rows_, group, most_nodes_)),
                             32);
  const int64_t sizes[] = {rows * hidden_stride_,   rows * hidden_stride_, rows * hidden_stride_, rows * qkv_stride_,
                           rows * attended_stride_, rows * gated_stride_,  rows * sums_stride_,
                           decoder_.threads_ * scratch_floats_};
  float** places[] = {&hidden_, &normed_, &branch_, &qkv_, &attended_, &gated_, &sums_, &scratch_};
  int64_t total = 0;
  for (int64_t size : sizes) total += round_up(size, 32);
  float* at = decoder_.workspace_.get(total);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    *places[i] = at;
    at += round_up(sizes[i], 32);
  }
  // A pass of another height laid its rows elsewhere: what lies beyond the true widths has to be zero again.
  const auto clear_beyond = [rows](float* base, int64_t stride, int64_t width) {
    if (stride == width) return;
    for (int64_t row = 0; row < rows; ++row) std::fill(base + row * stride + width, base + (row + 1) * stride, 0.0f);
  };
  clear_beyond(hidden_, hidden_stride_, spec_.hidden);
  clear_beyond(normed_, hidden_stride_, spec_.hidden);
  clear_beyond(branch_, hidden_stride_, spec_.hidden);
  clear_beyond(attended_, attended_stride_, spec_.heads * spec_.head_dim);
  clear_beyond(gated_, gated_stride_, spec_.intermediate);
}

void Pass::run() {
  if (!rows_.empty()) {
    lay_out();
    run_team(decoder_.threads_, [this](Worker& worker) { work(worker); });
  }
  for (Segment& segment : segments_)
    segment.sequence->nodes = std::move(segment.nodes);
}

}  // namespace pilotfish
