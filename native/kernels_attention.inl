// Attention of a block of rows over one key-value head, page by page with an online softmax in position order.
//
// A page is 32 positions aligned to position 0, so the steps of the softmax depend on a row's own position only. A score
// is one chain over the head dimension and an output one chain over positions; neither notices where a page lies, which
// slot a tree's node occupies, or what other rows are computed.

template <int Rows, int Width>
void add_values(const float* weights, int64_t first, int64_t last, const float* const* values, float* out,
                int64_t stride) {
  V16 sums[Rows][Width];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) sums[r][v] = load(out + r * stride + v * 16);
  for (int64_t i = first; i < last; ++i) {
    const float* value = values[i];
    V16 w[Width];
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) w[v] = load(value + v * 16);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < Width; ++v) sums[r][v] = fma_scalar(weights + r * kPagePositions + i, w[v], sums[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < Width; ++v) store(out + r * stride + v * 16, sums[r][v]);
}

template <int Rows, int Width>
void add_values_of(int64_t rows, const float* weights, int64_t first, int64_t last, const float* const* values,
                   float* out, int64_t stride) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return add_values_of<Rows - 1, Width>(rows, weights, first, last, values, out, stride);
  }
  add_values<Rows, Width>(weights, first, last, values, out, stride);
}

// out[row] += sum over positions of weight[row][position] * value[position], for rows that see the same positions.
void add_page_values(int64_t rows, const float* weights, int64_t first, int64_t last, const float* const* values,
                     int64_t dim, float* out, int64_t stride) {
  const float* shifted[kPagePositions];
  for (int64_t d = 0; d < dim; d += 32) {
    for (int64_t i = first; i < last; ++i) shifted[i] = values[i] + d;
    for (int64_t done = 0; done < rows;) {
      const float* w = weights + done * kPagePositions;
      float* to = out + done * stride + d;
      const int64_t left = rows - done;
      if (dim - d >= 32) {
        const int64_t some = left < kWideRows ? left : kWideRows;
        add_values_of<kWideRows, 2>(some, w, first, last, shifted, to, stride);
        done += some;
      } else {
        const int64_t some = left < kMaxRows ? left : kMaxRows;
        add_values_of<kMaxRows, 1>(some, w, first, last, shifted, to, stride);
        done += some;
      }
    }
  }
}

// Turns the 32 scores of one step into weights, given the largest score and the sum so far; rescales what was summed.
void softmax_step(float* scores, uint32_t seen, float* largest, float* total, float* out, int64_t dim) {
  V16 a = load(scores), b = load(scores + 16);
  if (seen != 0xffffffffu) {
    a = keep_lanes(a, seen & 0xffffu, kMinusInfinity);
    b = keep_lanes(b, seen >> 16, kMinusInfinity);
  }
  const float before = *largest, here = max_lanes(larger(a, b));
  const float now = here > before ? here : before;
  a = exponential(sub(a, splat(now)));
  b = exponential(sub(b, splat(now)));
  store(scores, a);
  store(scores + 16, b);
  float factor = 1.0f;
  if (now != before) {
    alignas(64) float lanes[16];
    const V16 scale = exponential(splat(before - now));
    store(lanes, scale);
    factor = lanes[0];
    for (int64_t d = 0; d < dim; d += 16) store(out + d, mul(load(out + d), scale));
  }
  *total = __builtin_fmaf(*total, factor, sum_lanes(add(a, b)));
  *largest = now;
}

// Scores of one page; its values, read next, are brought near meanwhile.
void page_scores(const AttendArgs& a, const float* page, float* scores, int64_t queries) {
  LinearArgs args{};
  args.tile_bytes = a.head_dim * kTileColumns * static_cast<int64_t>(sizeof(float));
  args.prefetch = reinterpret_cast<const uint8_t*>(page + a.value_offset);
  args.storage = Storage::kFloat32;
  args.tile = reinterpret_cast<const uint8_t*>(page + a.key_offset);
  args.k = a.head_dim;
  args.rows = queries;
  args.x = a.query;
  args.x_stride = a.padded_dim;
  args.out = scores;
  linear_tile<Float32Tile>(args);
}

// The lanes of a page from position `start` on that a row sees: [first, last), nothing where first >= last.
struct Seen {
  int64_t first, last;
};
PF_INLINE Seen seen_in(const AttendArgs& a, int64_t row, int64_t start) {
  const int64_t position = a.position[row];
  const int64_t from = a.window && position >= a.window ? position - a.window + 1 : 0;
  return {from > start ? from - start : 0,
          position - start + 1 < kPagePositions ? position - start + 1 : kPagePositions};
}

// The softmax step of all heads of a row.
void softmax_of_row(const AttendArgs& a, int64_t row, Seen seen, float* scores, float* largest, float* total) {
  const uint32_t upto = seen.last == 32 ? 0xffffffffu : (1u << seen.last) - 1u;
  const uint32_t lanes = upto & ~((1u << seen.first) - 1u);
  for (int64_t h = 0; h < a.heads; ++h) {
    const int64_t q = row * a.heads + h;
    softmax_step(scores + h * kPagePositions, lanes, largest + q, total + q, a.out + q * a.padded_dim, a.padded_dim);
  }
}

// A page whose slots are its positions, for all rows.
void attend_page(const AttendArgs& a, int64_t p, float* scores, float* largest, float* total) {
  const int64_t start = p * kPagePositions;
  const float* values[kPagePositions];
  page_scores(a, a.pages[p], scores, a.rows * a.heads);
  const float* value = a.pages[p] + a.value_offset;
  for (int64_t i = 0; i < kPagePositions; ++i) values[i] = value + i * a.padded_dim;
  for (int64_t row = 0; row < a.rows; ++row) {
    const Seen seen = seen_in(a, row, start);
    if (seen.first < seen.last)
      softmax_of_row(a, row, seen, scores + row * a.heads * kPagePositions, largest, total);
  }
  // Values: rows that see the same of the page together, most often all of it.
  for (int64_t row = 0, next; row < a.rows; row = next) {
    const Seen seen = seen_in(a, row, start);
    for (next = row + 1; next < a.rows; ++next) {
      const Seen other = seen_in(a, next, start);
      if (other.first != seen.first || other.last != seen.last) break;
    }
    if (seen.first < seen.last)
      add_page_values((next - row) * a.heads, scores + row * a.heads * kPagePositions, seen.first, seen.last, values,
                      a.padded_dim, a.out + row * a.heads * a.padded_dim, a.padded_dim);
  }
}

// The positions from `start` on that one row of a tree sees, wherever its path leads; `node_scores` are those of all rows
// with the slots from the page of the first node on.
void attend_path(const AttendArgs& a, int64_t row, int64_t start, const float* node_scores, float* scores,
                 float* largest, float* total) {
  const Seen seen = seen_in(a, row, start);
  if (seen.first >= seen.last) return;
  const int64_t first_page = a.committed / kPagePositions, queries = a.rows * a.heads;
  const float* values[kPagePositions];
  for (int64_t i = 0; i < kPagePositions; ++i) {
    int64_t position = start + i;
    if (position > a.position[row]) position = a.position[row];  // not seen; any slot of this row will do
    const int64_t slot =
        position < a.committed ? position : a.committed + a.paths[row][position - a.committed];
    const int64_t page = slot / kPagePositions, lane = slot % kPagePositions;
    values[i] = a.pages[page] + a.value_offset + lane * a.padded_dim;
    const float* from = node_scores + ((page - first_page) * queries + row * a.heads) * kPagePositions + lane;
    for (int64_t h = 0; h < a.heads; ++h) scores[h * kPagePositions + i] = from[h * kPagePositions];
  }
  softmax_of_row(a, row, seen, scores, largest, total);
  add_page_values(a.heads, scores, seen.first, seen.last, values, a.padded_dim,
                  a.out + row * a.heads * a.padded_dim, a.padded_dim);
}

void attend(const AttendArgs& a) {
  const int64_t queries = a.rows * a.heads;
  float* scores = a.scratch;
  float* largest = scores + queries * kPagePositions;
  float* total = largest + queries;
  float* node_scores = total + queries;  // [page][query][32], only for rows of a tree
  for (int64_t q = 0; q < queries; ++q) {
    largest[q] = kMinusInfinity;
    total[q] = 0.0f;
  }
  __builtin_memset(a.out, 0, sizeof(float) * static_cast<size_t>(queries * a.padded_dim));

  // Pages that are wholly committed are the same for all rows of a tree, whatever their paths.
  const int64_t last_page = a.position[a.rows - 1] / kPagePositions;
  const int64_t straight = a.paths ? a.committed / kPagePositions : last_page + 1;
  int64_t lowest = a.position[0];
  for (int64_t row = 1; row < a.rows; ++row) lowest = a.position[row] < lowest ? a.position[row] : lowest;
  lowest = a.window && lowest >= a.window ? lowest - a.window + 1 : 0;
  for (int64_t p = lowest / kPagePositions; p < straight; ++p) {
    // Pages lie far apart, where the processor does not look ahead by itself.
    if (p + 1 < straight)
      for (int64_t i = 0; i < a.head_dim * kPagePositions; i += 16)
        __builtin_prefetch(a.pages[p + 1] + a.key_offset + i, 0, 2);
    attend_page(a, p, scores, largest, total);
  }
  if (a.paths) {
    const int64_t last_slot = a.committed + a.last_node;
    for (int64_t p = straight; p <= last_slot / kPagePositions; ++p)
      page_scores(a, a.pages[p], node_scores + (p - straight) * queries * kPagePositions, queries);
    for (int64_t row = 0; row < a.rows; ++row)
      for (int64_t p = straight; p <= a.position[row] / kPagePositions; ++p)
        attend_path(a, row, p * kPagePositions, node_scores, scores, largest, total);
  }
  for (int64_t q = 0; q < queries; ++q) {
    const V16 inverse = splat(1.0f / total[q]);
    float* out = a.out + q * a.padded_dim;
    for (int64_t d = 0; d < a.padded_dim; d += 16) store(out + d, mul(load(out + d), inverse));
  }
}
