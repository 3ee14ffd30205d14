// The Python face of the native code: checks shapes and types of arrays, releases the interpreter lock, maps faults to
// the package's exceptions. Knows nothing of PyTorch; its tensors arrive through DLPack.
//
// Over 400 lines: it is the one place where Python meets native code, and only lists and checks what the others do.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <map>
#include <memory>

#include "bind_lookup.h"
#include "decoder.h"
#include "faults.h"
#include "linear.h"
#include "pool.h"
#include "sampling.h"
#include "successors.h"
#include "suffix.h"

namespace nb = nanobind;
using namespace pilotfish;

namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
template <class T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Vector = Array<const float, 1>;

const std::map<std::string, Place> kPlaces = {
    {"query", Place::kQuery},     {"key", Place::kKey},   {"value", Place::kValue},         {"output", Place::kOutput},
    {"gate_up", Place::kGateUp}, {"down", Place::kDown}, {"embedding", Place::kEmbedding}, {"head", Place::kHead}};
const std::map<std::string, Norm> kNorms = {
    {"attention_in", Norm::kAttentionIn}, {"attention_out", Norm::kAttentionOut}, {"mlp_in", Norm::kMlpIn},
    {"mlp_out", Norm::kMlpOut},           {"query", Norm::kQuery},                {"key", Norm::kKey},
    {"final", Norm::kFinal}};
const std::map<std::string, FloatStorage> kStorages = {
    {"float32", FloatStorage::kFloat32},
    {"bfloat16", FloatStorage::kBFloat16},
    {"bfloat16-compute", FloatStorage::kBFloat16Pairs},
    {"int8", FloatStorage::kInt8}};

template <class Value>
Value named(const std::map<std::string, Value>& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) throw nb::value_error(("unknown name: " + name).c_str());
  return found->second;
}

// Rows and inputs of each source of a place, so that no packing reads beyond an array.
void check_shapes(const Decoder& decoder, Place place, const std::vector<std::pair<int64_t, int64_t>>& shapes,
                  const std::vector<Vector>& biases) {
  const DecoderSpec& spec = decoder.spec();
  int64_t rows = spec.hidden, inputs = spec.hidden;
  if (place == Place::kQuery) rows = spec.heads * spec.head_dim;
  if (place == Place::kKey || place == Place::kValue) rows = spec.kv_heads * spec.head_dim;
  if (place == Place::kGateUp) rows = spec.intermediate;
  if (place == Place::kEmbedding || place == Place::kHead) rows = spec.vocab;
  if (place == Place::kOutput) inputs = spec.heads * spec.head_dim;
  if (place == Place::kDown) inputs = spec.intermediate;
  const size_t expected = place == Place::kGateUp ? 2 : 1;
  if (shapes.size() != expected || (!biases.empty() && biases.size() != expected))
    fail<TensorFault>("got ", shapes.size(), " matrices and ", biases.size(), " biases; expected ", expected);
  for (const auto& [got_rows, got_inputs] : shapes)
    if (got_rows != rows || got_inputs != inputs)
      fail<TensorFault>("a matrix is ", got_rows, " x ", got_inputs, "; expected ", rows, " x ", inputs);
  for (const Vector& bias : biases)
    if (static_cast<int64_t>(bias.shape(0)) != rows)
      fail<TensorFault>("a bias has ", bias.shape(0), " entries; expected ", rows);
}

std::vector<std::vector<float>> copy_biases(const std::vector<Vector>& biases) {
  std::vector<std::vector<float>> copies;
  for (const Vector& bias : biases) copies.emplace_back(bias.data(), bias.data() + bias.shape(0));
  return copies;
}

void pack_floats_into(Decoder& decoder, int64_t layer, const std::string& place_name,
                      const std::vector<AnyArray>& matrices, const std::string& storage_name,
                      const std::vector<Vector>& biases) {
  const Place place = named(kPlaces, place_name);
  const FloatStorage storage = named(kStorages, storage_name);
  std::vector<FloatSource> sources;
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const AnyArray& matrix : matrices) {
    if (matrix.ndim() != 2) fail<TensorFault>("a matrix has ", matrix.ndim(), " dimensions; expected 2");
    const nb::dlpack::dtype type = matrix.dtype();
    const bool real = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && type.lanes == 1;
    const bool brain = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) && type.lanes == 1;
    Element element = Element::kFloat32;
    if (brain && type.bits == 16)
      element = Element::kBFloat16;
    else if (real && type.bits == 16)
      element = Element::kFloat16;
    else if (!(real && type.bits == 32))
      fail<TensorFault>("a matrix is neither float32, float16 nor bfloat16");
    sources.push_back({matrix.data(), element});
    shapes.emplace_back(matrix.shape(0), matrix.shape(1));
  }
  check_shapes(decoder, place, shapes, biases);
  const auto copies = copy_biases(biases);
  nb::gil_scoped_release release;
  decoder.pack(layer, place, sources, storage, copies);
}

void pack_grouped_into(Decoder& decoder, int64_t layer, const std::string& place_name,
                       const std::vector<std::tuple<Array<const int8_t, 2>, Array<const float, 2>,
                                                    std::optional<Array<const float, 2>>>>& matrices,
                       const std::vector<Vector>& biases) {
  const Place place = named(kPlaces, place_name);
  std::vector<GroupedSource> sources;
  std::vector<std::pair<int64_t, int64_t>> shapes;
  const auto check_factors = [](const Array<const float, 2>& factors, int64_t rows, int64_t inputs) {
    if (static_cast<int64_t>(factors.shape(0)) != rows || static_cast<int64_t>(factors.shape(1)) * kGroup != inputs)
      fail<TensorFault>("scales or minimums are ", factors.shape(0), " x ", factors.shape(1), "; expected ", rows,
                        " x ", inputs / kGroup);
  };
  for (const auto& [quants, scales, minimums] : matrices) {
    const int64_t rows = static_cast<int64_t>(quants.shape(0)), inputs = static_cast<int64_t>(quants.shape(1));
    check_factors(scales, rows, inputs);
    if (minimums) check_factors(*minimums, rows, inputs);
    sources.push_back({quants.data(), scales.data(), minimums ? minimums->data() : nullptr});
    shapes.emplace_back(rows, inputs);
  }
  check_shapes(decoder, place, shapes, biases);
  const auto copies = copy_biases(biases);
  nb::gil_scoped_release release;
  decoder.pack(layer, place, sources, copies);
}

// A segment as Python passes it: sequence, rows, first node, whether it is a chain, first row with logits.
using SegmentTuple = std::tuple<int64_t, int64_t, int64_t, bool, int64_t>;

void forward(Decoder& decoder, const std::vector<SegmentTuple>& segments, std::vector<int64_t> tokens,
             std::vector<int64_t> parents, int64_t start, int64_t stop,
             std::optional<Array<const float, 2>> hidden_in, std::vector<int64_t> capture, Array<float, 2> logits,
             Array<float, 2> maxima, const std::vector<Array<float, 2>>& captured) {
  PassRequest request;
  const size_t rows = tokens.size(), hidden = static_cast<size_t>(decoder.spec().hidden);
  for (const auto& [sequence, count, first_node, chain, logits_from] : segments)
    request.segments.push_back({sequence, count, first_node, chain, logits_from});
  const auto check_states = [&](const char* name, size_t got_rows, size_t got_width) {
    if (got_rows != rows || got_width != hidden)
      fail<RowsFault>(name, " is ", got_rows, " x ", got_width, "; expected ", rows, " x ", hidden);
  };
  if (hidden_in) {
    check_states("hidden_in", hidden_in->shape(0), hidden_in->shape(1));
    request.hidden_in = hidden_in->data();
  }
  if (captured.size() != capture.size()) fail<RowsFault>("capture and captured differ in length");
  for (const auto& states : captured) {
    check_states("captured", states.shape(0), states.shape(1));
    request.captured.push_back(states.data());
  }
  if (static_cast<int64_t>(logits.shape(1)) != decoder.spec().vocab)
    fail<RowsFault>("logits has ", logits.shape(1), " columns; expected ", decoder.spec().vocab);
  const int64_t tiles = (decoder.spec().vocab + kMaximumBlock - 1) / kMaximumBlock;
  if (maxima.shape(0) != logits.shape(0) || static_cast<int64_t>(maxima.shape(1)) != tiles)
    fail<RowsFault>("maxima is ", maxima.shape(0), " x ", maxima.shape(1), "; expected ", logits.shape(0), " x ", tiles);
  request.logits = logits.data();
  request.maxima = maxima.data();
  request.logit_rows = static_cast<int64_t>(logits.shape(0));
  request.tokens = std::move(tokens);
  request.parents = std::move(parents);
  request.start = start;
  request.stop = stop;
  request.capture = std::move(capture);
  nb::gil_scoped_release release;
  decoder.forward(request);
}

// Of the first `vocabulary` columns of each row; nothing where a temperature is to be applied to a row that is not regular.
std::optional<std::vector<int64_t>> gumbel_argmax(Array<const float, 2> scores, int64_t vocabulary, uint64_t seed,
                                                  const std::vector<int64_t>& positions, float temperature) {
  const size_t rows = scores.shape(0), width = scores.shape(1);
  if (positions.size() != rows)
    fail<RowsFault>("positions has ", positions.size(), " entries; expected one per row, ", rows);
  if (vocabulary < 1 || static_cast<size_t>(vocabulary) > width)
    fail<RowsFault>("vocabulary is ", vocabulary, "; expected 1 to the columns of scores, ", width);
  std::vector<int64_t> choices(rows);
  nb::gil_scoped_release release;
  const auto choose = [&](size_t row) {
    choices[row] = kernels().gumbel_argmax(scores.data() + row * width, vocabulary, seed,
                                           static_cast<uint32_t>(static_cast<uint64_t>(positions[row])), temperature);
  };
  if (rows > 1) {
    static const int threads = available_cores();
    run_team(threads, [&](Worker& worker) {
      worker.share(static_cast<int64_t>(rows), [&](int64_t row, int64_t) { choose(static_cast<size_t>(row)); });
    });
  } else if (rows == 1) {
    choose(0);
  }
  for (size_t row = 0; row < rows; ++row) {
    if (choices[row] >= 0) continue;
    if (temperature > 0.0f) return std::nullopt;
    fail<RowsFault>("every score of row ", row, " is -inf or NaN; expected at least one to choose");
  }
  return choices;
}

void multiply_linear(const PackedLinear& linear, Array<const float, 2> x, Array<float, 2> out, int threads) {
  const int64_t rows = static_cast<int64_t>(x.shape(0));
  if (static_cast<int64_t>(x.shape(1)) != linear.inputs() || static_cast<int64_t>(out.shape(0)) != rows ||
      static_cast<int64_t>(out.shape(1)) != linear.outputs())
    fail<RowsFault>("x is ", rows, " x ", x.shape(1), " and out ", out.shape(0), " x ", out.shape(1), "; expected ",
                    linear.inputs(), " inputs and ", linear.outputs(), " outputs");
  if (threads < 1 || threads > 512) fail<RowsFault>("threads is ", threads, "; expected 1 to 512");
  nb::gil_scoped_release release;
  if (rows > 0) linear.multiply(x.data(), rows, out.data(), threads);
}

using SuffixTuple = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<double>, double>;

SuffixTuple propose_suffix(const SuffixIndex& index, const std::vector<int32_t>& context, int64_t draft_len,
                           int64_t nodes, double factor, double min_prob, bool branching) {
  SuffixLimits limits{static_cast<int64_t>(context.size()), draft_len, nodes, factor, min_prob, branching};
  SuffixProposal found = index.propose(context.data(), context.size(), limits);
  return {std::move(found.tokens), std::move(found.parents), std::move(found.confidence), found.score};
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<2>> owned_rows(std::unique_ptr<T[]> values, size_t rows, size_t columns) {
  T* kept = values.release();
  nb::capsule owner(kept, [](void* data) noexcept { delete[] static_cast<T*>(data); });
  return nb::ndarray<nb::numpy, T, nb::ndim<2>>(kept, {rows, columns}, owner);
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> highest(Array<const float, 1> scores, int64_t count) {
  return owned(highest_places(scores.data(), static_cast<int64_t>(scores.shape(0)), count));
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<2>> highest_in_rows(Array<const float, 2> scores, int64_t count) {
  const size_t rows = scores.shape(0), size = scores.shape(1);
  if (count < 1 || static_cast<size_t>(count) > size)
    fail<RowsFault>("count is ", count, "; expected 1 to the columns of scores, ", size);
  std::unique_ptr<int64_t[]> places(new int64_t[rows * static_cast<size_t>(count)]);
  {
    nb::gil_scoped_release release;
    for (size_t row = 0; row < rows; ++row)
      fill_highest(scores.data() + row * size, static_cast<int64_t>(size), count,
                   places.get() + row * static_cast<size_t>(count));
  }
  return owned_rows(std::move(places), rows, static_cast<size_t>(count));
}

// Whether it scales, factor, step, and by token how often it was committed.
using PenaltyTuple = std::tuple<bool, float, float, Array<const float, 1>>;

// Of each row of logits the places of the highest after the penalties, the logits there, tempered where a temperature is
// given, and whether all are regular.
nb::tuple penalised_rows(Array<const float, 2> logits, int64_t vocabulary, const std::vector<PenaltyTuple>& given,
                         const std::vector<std::vector<int64_t>>& paths, int64_t count,
                         std::optional<float> temperature) {
  const size_t rows = logits.shape(0);
  const int64_t width = static_cast<int64_t>(logits.shape(1));
  if (vocabulary < 1 || vocabulary > width || count < 1 || count > vocabulary)
    fail<RowsFault>("the ", count, " highest of ", vocabulary, " columns were asked for; rows have ", width);
  if (paths.size() != rows) fail<RowsFault>("got ", paths.size(), " paths; expected one per row, ", rows);
  std::vector<CountPenalty> penalties;
  for (const auto& [scales, factor, step, counts] : given) {
    const int64_t known = static_cast<int64_t>(counts.shape(0));
    if (known > vocabulary) fail<RowsFault>("got counts of ", known, " tokens; expected at most ", vocabulary);
    penalties.push_back({scales, factor, step, counts.data(), known});
  }
  for (const auto& path : paths)
    for (int64_t token : path)
      if (!penalties.empty() && (token < 0 || token >= vocabulary))
        fail<RowsFault>("a drafted token is ", token, "; expected an id below ", vocabulary);
  const size_t columns = static_cast<size_t>(count);
  std::unique_ptr<int64_t[]> places(new int64_t[rows * columns]);
  std::unique_ptr<float[]> scores(new float[rows * columns]);
  bool regular = true;
  {
    nb::gil_scoped_release release;
    // Not worth a team, as measured: waking threads takes longer than they save on a few rows.
    for (size_t row = 0; row < rows; ++row) {
      float* own = scores.get() + row * columns;
      regular = penalised_highest(logits.data() + row * static_cast<size_t>(width), vocabulary, paths[row], penalties,
                                  count, places.get() + row * columns, own) && regular;
      if (temperature) temper(own, count, *temperature);
    }
  }
  return nb::make_tuple(owned_rows(std::move(places), rows, columns), owned_rows(std::move(scores), rows, columns),
                        regular);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> keep_mass_of_rows(Array<const float, 2> scores,
                                                             Array<const float, 2> weights, double mass) {
  const size_t rows = scores.shape(0), columns = scores.shape(1);
  if (weights.shape(0) != rows || weights.shape(1) != columns)
    fail<RowsFault>("scores are ", rows, " x ", columns, "; expected as many weights");
  std::unique_ptr<float[]> kept(new float[rows * columns]);
  {
    nb::gil_scoped_release release;
    for (size_t first = 0; first < rows * columns; first += columns)
      keep_mass(scores.data() + first, weights.data() + first, static_cast<int64_t>(columns), mass, kept.get() + first);
  }
  return owned_rows(std::move(kept), rows, columns);
}

nb::ndarray<nb::numpy, double, nb::ndim<2>> uniforms_at(uint64_t seed, const std::vector<int64_t>& positions,
                                                        Array<const int64_t, 2> tokens) {
  const size_t rows = tokens.shape(0), columns = tokens.shape(1);
  if (positions.size() != rows) fail<RowsFault>("got ", positions.size(), " positions; expected one per row, ", rows);
  std::unique_ptr<double[]> uniforms(new double[rows * columns]);
  {
    nb::gil_scoped_release release;
    for (size_t row = 0; row < rows; ++row)
      noise_uniforms(seed, positions[row], tokens.data() + row * columns, static_cast<int64_t>(columns),
                     uniforms.get() + row * columns);
  }
  return owned_rows(std::move(uniforms), rows, columns);
}

// Of each row the id with the highest score - log.
std::vector<int64_t> highest_differences(Array<const int64_t, 2> ids, Array<const float, 2> scores,
                                         Array<const double, 2> logs) {
  const size_t rows = ids.shape(0), columns = ids.shape(1);
  if (scores.shape(0) != rows || scores.shape(1) != columns || logs.shape(0) != rows || logs.shape(1) != columns)
    fail<RowsFault>("ids are ", rows, " x ", columns, "; expected as many scores and logarithms");
  std::vector<int64_t> found;
  nb::gil_scoped_release release;
  for (size_t first = 0; first < rows * columns; first += columns) {
    const int64_t place =
        highest_difference(scores.data() + first, logs.data() + first, static_cast<int64_t>(columns));
    if (place < 0) fail<RowsFault>("no score of a row is above -inf, or one is NaN; expected one to choose");
    found.push_back(ids.data()[first + static_cast<size_t>(place)]);
  }
  return found;
}

using TopRows = std::tuple<std::vector<std::vector<int64_t>>, std::vector<std::vector<double>>, bool>;

// Of each row the indices of its highest values, their softmax among themselves, and whether all rows are regular. Where
// the maxima of the rows' blocks are known, most of a row is not looked at.
TopRows top_rows(Array<const float, 2> rows, int64_t vocabulary, int64_t count,
                 std::optional<Array<const float, 2>> maxima) {
  const int64_t width = static_cast<int64_t>(rows.shape(1));
  if (vocabulary < 1 || vocabulary > width || count < 1 || count > vocabulary)
    fail<RowsFault>("the ", count, " highest of ", vocabulary, " columns were asked for; rows have ", width);
  if (maxima && (maxima->shape(0) != rows.shape(0) || static_cast<int64_t>(maxima->shape(1)) < vocabulary / kMaximumBlock))
    fail<RowsFault>("maxima is ", maxima->shape(0), " x ", maxima->shape(1), "; expected one per ", kMaximumBlock,
                    " columns of ", rows.shape(0), " rows");
  TopRows found;
  auto& [ids, shares, regular] = found;
  ids.assign(rows.shape(0), std::vector<int64_t>(static_cast<size_t>(count)));
  shares.assign(rows.shape(0), std::vector<double>(static_cast<size_t>(count)));
  regular = true;
  nb::gil_scoped_release release;
  for (size_t row = 0; row < ids.size(); ++row) {
    const float* own = rows.data() + static_cast<int64_t>(row) * width;
    const float* known = maxima ? maxima->data() + row * maxima->shape(1) : nullptr;
    regular = top_indices(own, vocabulary, count, ids[row].data(), known) && regular;
    softmax_at(own, ids[row].data(), count, shares[row].data());
  }
  return found;
}

void translate(const std::exception_ptr& pointer, void*) {
  const auto raise = [](const char* name, const std::exception& fault) {
    const nb::object type = nb::module_::import_("pilotfish.errors").attr(name);
    PyErr_SetString(type.ptr(), fault.what());
  };
  try {
    std::rethrow_exception(pointer);
  } catch (const RowsFault& fault) {
    raise("RowsError", fault);
  } catch (const CacheFullFault& fault) {
    raise("CacheFullError", fault);
  } catch (const TensorFault& fault) {
    raise("CorruptModelError", fault);
  } catch (const BusyFault& fault) {
    raise("PilotfishError", fault);
  }
}

}  // namespace

NB_MODULE(_native, m) {
  nb::register_exception_translator(translate);

  nb::class_<DecoderSpec>(m, "DecoderSpec")
      .def(nb::init<>())
      .def_rw("vocab", &DecoderSpec::vocab)
      .def_rw("hidden", &DecoderSpec::hidden)
      .def_rw("intermediate", &DecoderSpec::intermediate)
      .def_rw("heads", &DecoderSpec::heads)
      .def_rw("kv_heads", &DecoderSpec::kv_heads)
      .def_rw("head_dim", &DecoderSpec::head_dim)
      .def_rw("norm_eps", &DecoderSpec::norm_eps)
      .def_rw("query_scale", &DecoderSpec::query_scale)
      .def_rw("embedding_scale", &DecoderSpec::embedding_scale)
      .def_rw("qk_norm", &DecoderSpec::qk_norm)
      .def_rw("sandwich_norms", &DecoderSpec::sandwich_norms)
      .def_prop_rw(
          "gelu_tanh", [](const DecoderSpec& spec) { return spec.activation == Activation::kGeluTanh; },
          [](DecoderSpec& spec, bool gelu) { spec.activation = gelu ? Activation::kGeluTanh : Activation::kSilu; })
      .def(
          "add_rope",
          [](DecoderSpec& spec, std::vector<double> inv_freq, double attention_factor) {
            spec.ropes.push_back({std::move(inv_freq), attention_factor});
          },
          nb::arg("inv_freq"), nb::arg("attention_factor"))
      .def(
          "add_layer", [](DecoderSpec& spec, int64_t rope, int64_t window) { spec.layers.push_back({rope, window}); },
          nb::arg("rope"), nb::arg("window"));

  nb::class_<Decoder>(m, "Decoder")
      .def(nb::init<DecoderSpec, int, int64_t>(), nb::arg("spec"), nb::arg("threads"), nb::arg("cache_pages"))
      .def(
          "set_norm",
          [](Decoder& decoder, int64_t layer, const std::string& name, Vector values) {
            decoder.set_norm(layer, named(kNorms, name), values.data(), static_cast<int64_t>(values.shape(0)));
          },
          nb::arg("layer"), nb::arg("name"), nb::arg("values"))
      .def("pack_floats", &pack_floats_into, nb::arg("layer"), nb::arg("place"), nb::arg("matrices"),
           nb::arg("storage"), nb::arg("biases"))
      .def("pack_grouped", &pack_grouped_into, nb::arg("layer"), nb::arg("place"), nb::arg("matrices"),
           nb::arg("biases"))
      .def("tie_head", &Decoder::tie_head)
      .def("check_loaded", &Decoder::check_loaded)
      .def("open", &Decoder::open, nb::arg("capacity"))
      .def("close", &Decoder::close, nb::arg("sequence"))
      .def("length", &Decoder::length, nb::arg("sequence"))
      .def("nodes", &Decoder::nodes, nb::arg("sequence"))
      .def("keep", &Decoder::keep, nb::arg("sequence"), nb::arg("path"))
      .def("truncate", &Decoder::truncate, nb::arg("sequence"), nb::arg("length"))
      .def("share", &Decoder::share, nb::arg("sequence"), nb::arg("block"))
      .def("adopt", &Decoder::adopt, nb::arg("sequence"), nb::arg("pages"))
      .def("release", &Decoder::release, nb::arg("page"))
      .def("limit_pages", &Decoder::limit_pages, nb::arg("pages"))
      .def("forward", &forward, nb::arg("segments"), nb::arg("tokens"), nb::arg("parents"), nb::arg("start"),
           nb::arg("stop"), nb::arg("hidden_in").none(), nb::arg("capture"), nb::arg("logits"),
           nb::arg("maxima"), nb::arg("captured"))
      .def_prop_ro("threads", &Decoder::threads)
      .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
      .def_prop_ro("free_pages", [](const Decoder& decoder) { return decoder.cache().free_pages(); })
      .def_prop_ro("total_pages", [](const Decoder& decoder) { return decoder.cache().total_pages(); })
      .def_prop_ro("page_bytes", [](const Decoder& decoder) { return decoder.cache().page_bytes(); });

  nb::class_<PackedLinear>(m, "PackedLinear")
      .def(
          "__init__",
          [](PackedLinear* linear, Array<const float, 2> weights, const std::string& storage) {
            const FloatSource source{weights.data(), Element::kFloat32};
            new (linear) PackedLinear(source, static_cast<int64_t>(weights.shape(0)),
                                      static_cast<int64_t>(weights.shape(1)), named(kStorages, storage));
          },
          nb::arg("weights"), nb::arg("storage"))
      .def("multiply", &multiply_linear, nb::arg("x"), nb::arg("out"), nb::arg("threads"));

  nb::class_<SuffixIndex>(m, "SuffixIndex")
      .def(nb::init<int64_t>(), nb::arg("depth"))
      .def("__len__", &SuffixIndex::size)
      .def(
          "extend",
          [](SuffixIndex& index, const std::vector<int32_t>& tokens) { index.extend(tokens.data(), tokens.size()); },
          nb::arg("tokens"))
      .def("propose", &propose_suffix, nb::arg("context"), nb::arg("draft_len"), nb::arg("nodes"), nb::arg("factor"),
           nb::arg("min_prob"), nb::arg("branching"));

  bind_lookup(m);

  m.attr("PAGE_POSITIONS") = kPagePositions;
  m.attr("MAXIMUM_BLOCK") = kMaximumBlock;
  m.def("gumbel_argmax", &gumbel_argmax, nb::arg("scores"), nb::arg("vocabulary"), nb::arg("seed"), nb::arg("positions"),
        nb::arg("temperature") = 0.0f);
  m.def("highest", &highest, nb::arg("scores"), nb::arg("count"));
  m.def("highest_in_rows", &highest_in_rows, nb::arg("scores"), nb::arg("count"));
  m.def("penalised_rows", &penalised_rows, nb::arg("logits"), nb::arg("vocabulary"), nb::arg("penalties"),
        nb::arg("paths"), nb::arg("count"), nb::arg("temperature").none());
  m.def("keep_mass", &keep_mass_of_rows, nb::arg("scores"), nb::arg("weights"), nb::arg("mass"));
  m.def("noise_uniforms", &uniforms_at, nb::arg("seed"), nb::arg("positions"), nb::arg("tokens"));
  m.def("highest_differences", &highest_differences, nb::arg("ids"), nb::arg("scores"), nb::arg("logs"));
  m.def("top_rows", &top_rows, nb::arg("rows"), nb::arg("vocabulary"), nb::arg("count"),
        nb::arg("maxima").none() = nb::none());
  m.def("instruction_sets", &instruction_sets);
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("select_isa", &select_instruction_set, nb::arg("name"));
  m.def("cpu_features", &processor_features);
  m.def("available_cores", &available_cores);
  m.def("release_freed_memory", &release_freed_memory);
  const auto check_threads = [](int threads) {
    if (threads < 1 || threads > 512) fail<RowsFault>("threads is ", threads, "; expected 1 to 512");
  };
  m.def(
      "measure_bandwidth",
      [check_threads](int threads) {
        check_threads(threads);
        nb::gil_scoped_release release;
        return measure_bandwidth(threads);
      },
      nb::arg("threads"));
  m.def(
      "measure_flops",
      [check_threads](int threads, bool pairs) {
        check_threads(threads);
        nb::gil_scoped_release release;
        return measure_flops(threads, pairs);
      },
      nb::arg("threads"), nb::arg("pairs") = false);
}
