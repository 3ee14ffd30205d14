// Runs the native code without Python, for the sanitizers: every storage, instruction set and thread count, trees, lookup,
// rollback, refusals and a fork. Prints what went wrong and returns 1, or returns 0.
//
// Over 400 lines: one program, so that each sanitizer builds and runs once for all native code.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "decoder.h"
#include "faults.h"
#include "kernels.h"
#include "lookup.h"
#include "numbers.h"
#include "pool.h"
#include "sampling.h"
#include "successors.h"

using namespace pilotfish;

namespace {

int failures = 0;

void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

template <class Fault, class Call>
void check_refused(Call call, const std::string& what) {
  try {
    call();
  } catch (const Fault&) {
    return;
  }
  check(false, what + " was not refused");
}

struct Random {
  uint32_t state;
  uint32_t next() { return (state = state * 1664525u + 1013904223u) >> 8; }
  float real() { return static_cast<float>(next()) / 8388608.0f - 1.0f; }
  int64_t below(int64_t limit) { return static_cast<int64_t>(next() % static_cast<uint32_t>(limit)); }
};

std::vector<float> noise(Random& random, int64_t count, float spread, float middle = 0.0f) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = middle + spread * random.real();
  return values;
}

enum class Form { kFloat32, kBFloat16, kPairs, kInt8, kGroupedMinimum, kGroupedFloat };

DecoderSpec awkward_spec(bool rich) {
  DecoderSpec spec;
  spec.vocab = 53;
  spec.hidden = rich ? 64 : 40;
  spec.intermediate = rich ? 96 : 56;
  spec.heads = rich ? 4 : 6;
  spec.kv_heads = 2;
  spec.head_dim = rich ? 16 : 12;
  spec.norm_eps = 1e-5;
  spec.query_scale = 0.25;
  spec.qk_norm = spec.sandwich_norms = rich;
  spec.activation = rich ? Activation::kGeluTanh : Activation::kSilu;
  Rope rope;
  for (int64_t i = 0; i < spec.head_dim / 2; ++i) rope.inv_freq.push_back(std::pow(0.3, static_cast<double>(i)));
  spec.ropes.push_back(rope);
  spec.layers = {{0, 0}, {-1, 5}, {0, 33}};
  return spec;
}

void load(Decoder& decoder, Form form, bool biases) {
  const DecoderSpec& spec = decoder.spec();
  Random random{77};
  const auto put = [&](int64_t layer, Place place, int64_t rows, int64_t inputs, int sources) {
    std::vector<std::vector<float>> values, all_biases, scales;
    std::vector<std::vector<int8_t>> quants;
    std::vector<FloatSource> floats;
    std::vector<GroupedSource> groups;
    for (int s = 0; s < sources; ++s) {
      values.push_back(noise(random, rows * inputs, 2.0f / std::sqrt(static_cast<float>(inputs))));
      scales.push_back(noise(random, rows * inputs / kGroup, 0.001f, 0.002f));
      quants.emplace_back();
      for (float value : values.back()) quants.back().push_back(static_cast<int8_t>(value * 40.0f));
      if (form == Form::kGroupedMinimum)  // float16 holds these exactly
        for (float& scale : scales.back()) scale = std::round(scale * 1024.0f) / 1024.0f;
      if (biases) all_biases.push_back(noise(random, rows, 0.2f));
    }
    for (int s = 0; s < sources; ++s) {
      const size_t i = static_cast<size_t>(s);
      floats.push_back({values[i].data(), Element::kFloat32});
      groups.push_back(
          {quants[i].data(), scales[i].data(), form == Form::kGroupedMinimum ? scales[i].data() : nullptr});
    }
    if (form == Form::kGroupedMinimum || form == Form::kGroupedFloat)
      decoder.pack(layer, place, groups, all_biases);
    else
      decoder.pack(layer, place, floats,
                   form == Form::kFloat32    ? FloatStorage::kFloat32
                   : form == Form::kBFloat16 ? FloatStorage::kBFloat16
                   : form == Form::kPairs    ? FloatStorage::kBFloat16Pairs
                                             : FloatStorage::kInt8,
                   all_biases);
  };
  const auto norm = [&](int64_t layer, Norm which, int64_t count) {
    const std::vector<float> values = noise(random, count, 0.3f, 1.0f);
    decoder.set_norm(layer, which, values.data(), count);
  };
  const int64_t queries = spec.heads * spec.head_dim, keys = spec.kv_heads * spec.head_dim;
  put(0, Place::kEmbedding, spec.vocab, spec.hidden, 1);
  put(0, Place::kHead, spec.vocab, spec.hidden, 1);
  norm(0, Norm::kFinal, spec.hidden);
  for (int64_t layer = 0; layer < static_cast<int64_t>(spec.layers.size()); ++layer) {
    put(layer, Place::kQuery, queries, spec.hidden, 1);
    put(layer, Place::kKey, keys, spec.hidden, 1);
    put(layer, Place::kValue, keys, spec.hidden, 1);
    put(layer, Place::kOutput, spec.hidden, queries, 1);
    put(layer, Place::kGateUp, spec.intermediate, spec.hidden, 2);
    put(layer, Place::kDown, spec.hidden, spec.intermediate, 1);
    for (Norm which : {Norm::kAttentionIn, Norm::kAttentionOut, Norm::kMlpIn, Norm::kMlpOut})
      norm(layer, which, spec.hidden);
    norm(layer, Norm::kQuery, spec.head_dim);
    norm(layer, Norm::kKey, spec.head_dim);
  }
}

using Logits = std::vector<float>;

Logits run(Decoder& decoder, int64_t sequence, const std::vector<int64_t>& tokens,
           const std::vector<int64_t>* parents = nullptr, int64_t first_node = 0) {
  PassRequest request;
  const int64_t rows = static_cast<int64_t>(tokens.size());
  Logits logits(static_cast<size_t>(rows * decoder.spec().vocab));
  request.segments.push_back({sequence, rows, first_node, parents == nullptr, 0});
  request.tokens = tokens;
  if (parents) request.parents = *parents;
  request.stop = static_cast<int64_t>(decoder.spec().layers.size());
  request.logits = logits.data();
  request.logit_rows = rows;
  const int64_t tiles = (decoder.spec().vocab + kMaximumBlock - 1) / kMaximumBlock;
  std::vector<float> maxima(static_cast<size_t>(rows * tiles));
  request.maxima = maxima.data();
  decoder.forward(request);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const float* own = logits.data() + row * decoder.spec().vocab;
      const int64_t end = std::min<int64_t>((tile + 1) * kMaximumBlock, decoder.spec().vocab);
      check(maxima[static_cast<size_t>(row * tiles + tile)] == *std::max_element(own + tile * kMaximumBlock, own + end),
            "maxima of logits");
    }
  return logits;
}

Logits one_by_one(Decoder& decoder, const std::vector<int64_t>& tokens) {
  const int64_t sequence = decoder.open(static_cast<int64_t>(tokens.size()));
  Logits last;
  for (int64_t token : tokens) {
    last = run(decoder, sequence, {token});
    decoder.keep(sequence, {0});
  }
  decoder.close(sequence);
  return last;
}

bool same(const float* a, const Logits& b) { return std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0; }

void check_model(bool rich, Form form, int threads, const std::string& name) {
  Decoder decoder(awkward_spec(rich), threads, 64);
  check_refused<TensorFault>([&] { decoder.check_loaded(); }, name + ": an empty decoder");
  load(decoder, form, rich);
  decoder.check_loaded();
  Random random{static_cast<uint32_t>(threads)};
  const int64_t vocab = decoder.spec().vocab;
  for (int64_t prefix : {0, 3, 31, 45}) {
    std::vector<int64_t> prompt, tokens, parents;
    for (int64_t i = 0; i < prefix; ++i) prompt.push_back(random.below(vocab));
    for (int64_t node = 0; node < 19; ++node) {
      tokens.push_back(random.below(vocab));
      parents.push_back(std::max<int64_t>(-1, node - 1 - random.below(3)));
    }
    const int64_t sequence = decoder.open(100);
    if (prefix > 0) {
      run(decoder, sequence, prompt);
      std::vector<int64_t> all;
      for (int64_t i = 0; i < prefix; ++i) all.push_back(i);
      decoder.keep(sequence, all);
    }
    const Logits tree = run(decoder, sequence, tokens, &parents);
    std::vector<int64_t> path;
    for (int64_t node = 18; node >= 0; node = parents[static_cast<size_t>(node)]) path.insert(path.begin(), node);
    std::vector<int64_t> chain = prompt;
    for (int64_t node : path) chain.push_back(tokens[static_cast<size_t>(node)]);
    check(same(tree.data() + 18 * vocab, one_by_one(decoder, chain)), name + ": a tree's row differs from plain decoding");
    decoder.keep(sequence, path);
    chain.push_back(5);
    check(same(run(decoder, sequence, {5}).data(), one_by_one(decoder, chain)), name + ": after keep");
    decoder.truncate(sequence, prefix / 2);
    chain.assign(prompt.begin(), prompt.begin() + prefix / 2);
    chain.push_back(6);
    check(same(run(decoder, sequence, {6}).data(), one_by_one(decoder, chain)), name + ": after truncate");
    decoder.close(sequence);
  }
  check(decoder.cache().free_pages() == decoder.cache().total_pages(), name + ": pages were lost");
}

// Pages shared between sequences: the same bits, copies where somebody writes, and none lost.
void check_sharing(int threads) {
  Decoder decoder(awkward_spec(false), threads, 12);
  load(decoder, Form::kFloat32, false);
  Random random{5};
  std::vector<int64_t> text, path;
  for (int64_t i = 0; i < 70; ++i) {
    text.push_back(random.below(decoder.spec().vocab));
    path.push_back(i);
  }
  const int64_t first = decoder.open(100), second = decoder.open(100);
  check_refused<RowsFault>([&] { decoder.share(first, 0); }, "a block that is not full");
  run(decoder, first, text);
  decoder.keep(first, path);
  const std::vector<int64_t> pages = {decoder.share(first, 0), decoder.share(first, 1)};
  decoder.adopt(second, pages);
  check(decoder.length(second) == 64, "adopted pages are committed");
  check(decoder.cache().free_pages() == 12 - 3, "shared pages are counted once");
  std::vector<int64_t> other(text.begin(), text.begin() + 64);
  other.push_back(7);
  check(same(run(decoder, second, {7}).data(), one_by_one(decoder, other)), "after adopting");
  decoder.truncate(second, 40);
  other.resize(40);
  other.push_back(9);
  check(same(run(decoder, second, {9}).data(), one_by_one(decoder, other)), "after a cut into a shared page");
  text.push_back(3);
  check(same(run(decoder, first, {3}).data(), one_by_one(decoder, text)), "the page was copied before it was written");
  check_refused<RowsFault>([&] { decoder.adopt(second, pages); }, "pages after half a page");
  check_refused<RowsFault>([&] { decoder.adopt(decoder.open(64), {11}); }, "a page that nobody shares");
  check_refused<RowsFault>([&] { decoder.release(99); }, "a page that does not exist");
  check_refused<CacheFullFault>([&] { run(decoder, decoder.open(384), std::vector<int64_t>(300, 1)); }, "a full cache");
  check_refused<CacheFullFault>([&] { decoder.limit_pages(2); }, "a limit below what is in use");
  decoder.close(first);
  check(decoder.cache().free_pages() == 12 - 3, "shared pages outlive their sequence");
  decoder.close(second);
  for (int64_t page : pages) decoder.release(page);
  check(decoder.cache().free_pages() == 12, "pages were lost");
  decoder.limit_pages(1);
  check(decoder.cache().total_pages() == 1, "a cache can be limited");
}

void check_refusals() {
  Decoder decoder(awkward_spec(false), 2, 4);
  load(decoder, Form::kFloat32, false);
  const int64_t sequence = decoder.open(40);
  run(decoder, sequence, {1, 2, 3});
  const std::vector<int64_t> later = {0}, below = {-2};
  check_refused<RowsFault>([&] { run(decoder, sequence, {53}); }, "a token beyond the vocabulary");
  check_refused<RowsFault>([&] { run(decoder, sequence, {-1}); }, "a negative token");
  check_refused<RowsFault>([&] { run(decoder, sequence, {1}, &later); }, "a parent that is the node itself");
  check_refused<RowsFault>([&] { run(decoder, sequence, {1}, &below); }, "a parent below the prefix");
  check_refused<RowsFault>([&] { run(decoder, sequence, {1}, nullptr, 4); }, "a first node beyond the nodes");
  check_refused<RowsFault>([&] { run(decoder, 7, {1}); }, "a sequence that is not open");
  check_refused<RowsFault>([&] { decoder.keep(sequence, {1}); }, "a path that does not begin at the prefix");
  check_refused<RowsFault>([&] { decoder.keep(sequence, {3}); }, "a path beyond the nodes");
  check_refused<RowsFault>([&] { decoder.truncate(sequence, 1); }, "a truncation beyond the length");
  check_refused<CacheFullFault>([&] { run(decoder, sequence, std::vector<int64_t>(41, 1)); }, "too many rows");
  check_refused<CacheFullFault>([&] { decoder.open(INT64_MAX); }, "an endless sequence");
  decoder.keep(sequence, {0, 1});
  check(decoder.length(sequence) == 2, "refusals changed the sequence");
  DecoderSpec broken = awkward_spec(false);
  broken.heads = 5;
  check_refused<RowsFault>([&] { Decoder(broken, 1, 1); }, "heads that do not divide");
}

// Sums of two products at the edge of the subnormal numbers, as bits: 2^-126 and a little less, which is zero or is not.
std::vector<uint32_t> sums_at_the_edge() {
  std::vector<uint32_t> found;
  for (float little : {0.0f, 0x1p-75f, 0x1.8p-76f, 0x1p-76f, 0x1p-77f, 0x1p-50f}) {
    alignas(64) float x[32] = {};
    const uint16_t inputs[2] = {float32_to_bfloat16(-little), float32_to_bfloat16(0x1p-63f)};
    std::memcpy(x, inputs, sizeof(inputs));
    alignas(64) uint16_t tile[2 * kTileColumns];
    for (int column = 0; column < kTileColumns; ++column) {
      tile[2 * column] = float32_to_bfloat16(column % 2 ? 0x1p-75f : -0x1p-75f);
      tile[2 * column + 1] = float32_to_bfloat16(column % 3 ? 0x1p-63f : 0x1p-64f);
    }
    alignas(64) float out[kTileColumns];
    LinearArgs args{};
    args.storage = Storage::kBFloat16Pairs;
    args.tile = reinterpret_cast<const uint8_t*>(tile);
    args.k = 2;
    args.tile_bytes = sizeof(tile);
    args.rows = 1;
    args.x = x;
    args.x_stride = 32;
    args.out = out;
    kernels().linear(args);
    for (float sum : out) found.push_back(float_to_bits(sum));
  }
  return found;
}

void check_instruction_sets() {
  std::vector<std::vector<uint32_t>> edges;
  std::vector<Logits> outputs;
  for (const std::string& name : instruction_sets()) {
    check(select_instruction_set(name), name + " cannot be selected");
    edges.push_back(sums_at_the_edge());
    check(edges.back() == edges.front(), name + " treats sums at the edge of the subnormal numbers otherwise");
    outputs.emplace_back();
    for (Form form : {Form::kFloat32, Form::kBFloat16, Form::kPairs, Form::kInt8, Form::kGroupedMinimum,
                      Form::kGroupedFloat}) {
      Decoder decoder(awkward_spec(true), 1, 64);
      load(decoder, form, true);
      const int64_t sequence = decoder.open(64);
      const Logits logits = run(decoder, sequence, std::vector<int64_t>(37, 11));
      outputs.back().insert(outputs.back().end(), logits.begin(), logits.end());
    }
    check(same(outputs.back().data(), outputs.front()), name + " differs from " + instruction_sets().front());
    std::vector<float> scores(1003);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = std::sin(static_cast<float>(i));
    check(kernels().gumbel_argmax(scores.data(), 1003, 42, 7, 0.0f) ==
              portable_kernels().gumbel_argmax(scores.data(), 1003, 42, 7, 0.0f),
          name + " draws another token");
    check(kernels().gumbel_argmax(scores.data(), 1003, 42, 7, 0.3f) ==
              portable_kernels().gumbel_argmax(scores.data(), 1003, 42, 7, 0.3f),
          name + " draws another token at a temperature");
  }
  select_instruction_set("auto");
}

// What sampling reads of a row of logits, with every value masked, tied, padded or not a number somewhere.
void check_sampling() {
  for (int64_t size : {1, 63, 64, 65, 1003}) {
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> logits(static_cast<size_t>(size));
      for (size_t i = 0; i < logits.size(); ++i)
        logits[i] = kind == 1 ? static_cast<float>(i % 3) : kind == 2 ? -INFINITY : std::sin(static_cast<float>(i));
      if (kind == 3) logits[logits.size() / 2] = NAN;
      const std::vector<float> before = logits;
      const std::vector<int64_t> path{size / 3, 0, size / 3};
      std::vector<float> counts(static_cast<size_t>(size / 2 + 1));
      counts.front() = 1;
      counts.back() = 3;
      const int64_t known = static_cast<int64_t>(counts.size());
      const std::vector<CountPenalty> lowering{{true, 1.5f, 0.0f, counts.data(), known},
                                               {false, 0.5f, 0.25f, counts.data(), known}};
      const std::vector<CountPenalty> raising{{true, 0.5f, 0.0f, counts.data(), known},
                                              {false, -0.5f, 0.25f, counts.data(), known}};
      for (int64_t count : {int64_t{1}, std::min<int64_t>(size, 50), size}) {
        const std::string name = std::to_string(count) + " of " + std::to_string(size);
        std::vector<int64_t> top(static_cast<size_t>(count)), places(top);
        std::vector<double> shares(top.size());
        check(top_indices(logits.data(), size, count, top.data()) == (kind != 3), name + ": regular");
        std::vector<float> maxima;
        for (int64_t block = 0; block < size / kMaximumBlock; ++block) {
          const float* first = logits.data() + block * kMaximumBlock;
          const bool odd = std::any_of(first, first + kMaximumBlock, [](float value) { return !(value < INFINITY); });
          maxima.push_back(odd ? INFINITY : *std::max_element(first, first + kMaximumBlock));
        }
        std::vector<int64_t> again(top.size());
        check(top_indices(logits.data(), size, count, again.data(), maxima.data()) == (kind != 3) && again == top,
              name + ": from maxima");
        softmax_at(logits.data(), top.data(), count, shares.data());
        std::vector<float> scores(top.size());
        for (const auto* penalties : {&lowering, &raising}) {
          penalised_highest(logits.data(), size, path, *penalties, count, places.data(), scores.data());
          check(std::memcmp(logits.data(), before.data(), sizeof(float) * before.size()) == 0, name + ": row as it was");
          check(std::is_sorted(places.begin(), places.end()) && places.back() < size, name + ": places");
        }
        std::vector<double> uniforms(scores.size());
        noise_uniforms(7, 3, places.data(), count, uniforms.data());
        check(*std::max_element(uniforms.begin(), uniforms.end()) < 1.0, name + ": uniform numbers");
        const int64_t choice = highest_difference(scores.data(), uniforms.data(), count);
        check(kind == 3 || (choice >= 0) == (kind != 2),
              name + ": a choice unless all are masked or not a number");
        temper(scores.data(), count, 0.5f);
        fill_highest(logits.data(), size, count, places.data());
        std::sort(top.begin(), top.end());
        check(kind > 1 || places == top, name + ": two ways to the highest");
        const std::vector<float> weights(scores.size(), 1.0f);
        std::vector<float> kept(scores.size());
        keep_mass(scores.data(), weights.data(), count, 0.45, kept.data());
        check(kind > 1 || std::count(kept.begin(), kept.end(), -INFINITY) >= count / 2, name + ": half of the mass");
      }
    }
  }
}

// Rounding many numbers is rounding each, wherever they lie and wherever the results go.
void check_rounding() {
  Random random{6};
  std::vector<float> values{0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 1.1754942e-38f, 1.1754944e-38f, 3.4e38f, 1.0f};
  for (uint32_t bits : {0x7f800001u, 0xff80ffffu, 0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x007fffffu, 0x807f8000u})
    values.push_back(bits_to_float(bits));
  while (values.size() < 77) values.push_back(bits_to_float(random.next() << 8 ^ random.next()));
  for (const std::string& name : instruction_sets()) {
    select_instruction_set(name);
    for (size_t count = 0; count <= values.size(); ++count) {
      std::vector<float> place(values);
      kernels().round_bfloat16(place.data(), static_cast<int64_t>(count), reinterpret_cast<uint16_t*>(place.data()));
      std::vector<uint16_t> halves(2 * place.size());
      std::memcpy(halves.data(), place.data(), place.size() * sizeof(float));
      for (size_t i = 0; i < count; ++i)
        check(halves[i] == float32_to_normal_bfloat16(values[i]), name + ": rounding of number " + std::to_string(i));
    }
  }
  select_instruction_set("auto");
}

// Whatever a table's file says, once its bounds were checked, and whatever is asked.
void check_lookup() {
  Random random{4};
  const auto any = [&](int64_t limit) { return static_cast<int32_t>(random.below(limit)); };
  for (int kind = 0; kind < 12; ++kind) {
    LookupTable table;
    for (int64_t length = kLongestTableContext; length >= 1; --length) {
      std::vector<int32_t> keys, starts{0}, successors;
      std::vector<float> shares;
      std::vector<uint8_t> seen;
      for (int entry = 0; entry < 40; ++entry) {
        const std::vector<int32_t> context{any(5), any(5), any(5), any(5), any(5), any(5), any(5), any(5)};
        keys.push_back(context_key(context.data(), length));
        for (int32_t i = any(5); i > 0; --i) {
          successors.push_back(any(3) ? any(8) : -any(1 << 30));
          shares.push_back(any(5) ? 0.5f : NAN);
        }
        starts.push_back(static_cast<int32_t>(successors.size()));
        seen.push_back(static_cast<uint8_t>(any(kSeenClasses)));
      }
      if (kind % 4) std::sort(keys.begin(), keys.end());
      table.orders.emplace_back(length, keys.data(), keys.size(), starts.data(), successors.data(), shares.data(),
                                shares.size(), seen.data());
    }
    std::vector<double> weights;
    for (int i = 0; i < kLookupWeights; ++i) weights.push_back(any(9) / 2.0 - 2.0);
    std::vector<double> noise_weights;
    for (int i = 0; i < kNoiseWeights; ++i) noise_weights.push_back(any(9) / 2.0 - 2.0);
    LookupIndex index(weights, noise_weights, kind % 3 ? &table : nullptr, 1 + any(30));
    std::vector<int32_t> text;
    for (int turn = 0; turn < 60; ++turn) {
      const size_t before = text.size();
      for (int32_t i = turn == 3 ? 100 : any(4); i > 0; --i) text.push_back(any(kind % 2 ? 5 : 60));
      index.extend(text.data() + before, text.size() - before);
      const std::vector<int32_t> ids{any(5), any(60), -1};
      const std::vector<double> shares{0.5, any(4) ? 0.25 : NAN, 0.0};
      index.learn(any(6) - 1, any(5), ids.data(), shares.data(), static_cast<size_t>(any(4)));
      const size_t count = std::min(text.size(), static_cast<size_t>(any(20)));
      const LookupLimits limits{any(8) - 1, any(30) - 1, 50, any(3) * 0.01, any(2) == 1};
      const LookupNoise noise{static_cast<uint64_t>(any(1 << 30)), any(1 << 30), any(4) * 0.8};
      const LookupTree tree = index.propose(text.data() + text.size() - count, count, limits, noise);
      for (size_t node = 0; node < tree.tokens.size(); ++node)
        check(tree.tokens[node] >= 0 && tree.tokens[node] < 50 && tree.parents[node] < static_cast<int32_t>(node) &&
                  tree.confidence[node] >= limits.least,
              "lookup: a node of a tree");
    }
  }
}

void check_fork() {
  Decoder decoder(awkward_spec(false), 3, 64);
  load(decoder, Form::kFloat32, false);
  const Logits expected = one_by_one(decoder, {1, 2, 3});
  const pid_t child = fork();
  if (child == 0) _exit(same(expected.data(), one_by_one(decoder, {1, 2, 3})) ? 0 : 1);
  int status = 1;
  check(waitpid(child, &status, 0) == child && status == 0, "the child of a fork failed");
}

void check_concurrent_use() {
  Decoder first(awkward_spec(false), 2, 64), second(awkward_spec(true), 3, 64);
  load(first, Form::kFloat32, false);
  load(second, Form::kInt8, true);
  const Logits a = one_by_one(first, {1, 2, 3}), b = one_by_one(second, {1, 2, 3});
  bool good[2] = {true, true};
  std::thread other([&] {
    for (int i = 0; i < 10; ++i) good[0] = good[0] && same(a.data(), one_by_one(first, {1, 2, 3}));
  });
  for (int i = 0; i < 10; ++i) good[1] = good[1] && same(b.data(), one_by_one(second, {1, 2, 3}));
  other.join();
  check(good[0] && good[1], "two decoders in two threads disturb each other");
}

}  // namespace

int main() {
  for (bool rich : {false, true}) {
    for (int threads = 1; threads <= 4; ++threads) {
      const std::string name = std::string(rich ? "rich" : "plain") + ", " + std::to_string(threads) + " threads";
      check_model(rich, Form::kFloat32, threads, name + ", float32");
      check_model(rich, Form::kBFloat16, threads, name + ", bfloat16");
      check_model(rich, Form::kPairs, threads, name + ", bfloat16 in pairs");
      check_model(rich, Form::kInt8, threads, name + ", int8");
      if (!rich) continue;
      check_model(rich, Form::kGroupedMinimum, threads, name + ", groups with minimums");
      check_model(rich, Form::kGroupedFloat, threads, name + ", groups with float32 scales");
    }
  }
  for (int threads : {1, 3}) check_sharing(threads);
  check_refusals();
  check_instruction_sets();
  check_sampling();
  check_rounding();
  check_lookup();
  check_concurrent_use();
  check_fork();
  std::printf(failures == 0 ? "all native checks passed\n" : "%d native checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}
