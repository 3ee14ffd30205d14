#include "bind_lookup.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "lookup.h"

namespace nb = nanobind;
using namespace pilotfish;

namespace {

template <class T>
using Values = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Weights = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// One context length; lengths are added the longest first. Bounds are checked here, once, and not at each look-up.
void add_order(LookupTable& table, int64_t length, const Values<int32_t>& keys, const Values<int32_t>& starts,
               const Values<int32_t>& successors, const Values<float>& shares, const Values<uint8_t>& seen) {
  const size_t entries = keys.shape(0);
  if (length < 1 || length > kLongestTableContext || starts.shape(0) != entries + 1 || seen.shape(0) != entries ||
      shares.shape(0) != successors.shape(0))
    throw nb::value_error("a table's arrays do not fit each other");
  table.orders.emplace_back(length, keys.data(), entries, starts.data(), successors.data(), shares.data(),
                            shares.shape(0), seen.data());
}

using NoiseTuple = std::tuple<uint64_t, int64_t, double>;
using TreeTuple = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<double>>;

TreeTuple propose(const LookupIndex& index, const std::vector<int32_t>& context, int64_t depth, int64_t nodes,
                  int64_t vocabulary, double least, bool branching, std::optional<NoiseTuple> noise) {
  const auto [seed, position, temperature] = noise.value_or(NoiseTuple{0, 0, 0.0});
  LookupTree tree = index.propose(context.data(), context.size(), {depth, nodes, vocabulary, least, branching},
                                  {seed, position, temperature});
  return {std::move(tree.tokens), std::move(tree.parents), std::move(tree.confidence)};
}

}  // namespace

void bind_lookup(nb::module_& m) {
  nb::class_<LookupTable>(m, "LookupTable")
      .def(nb::init<>())
      .def("add_order", &add_order, nb::arg("length"), nb::arg("keys"), nb::arg("starts"), nb::arg("successors"),
           nb::arg("shares"), nb::arg("seen"));
  nb::class_<LookupIndex>(m, "LookupIndex")
      .def(
          "__init__",
          [](LookupIndex* index, const Weights& weights, const std::vector<double>& noise_weights,
             const LookupTable* table, int64_t remembered) {
            if (weights.shape(0) != kLookupFactors || weights.shape(1) != kUnits || noise_weights.size() != kNoiseWeights)
              throw nb::value_error("the weights do not fit this version");
            new (index) LookupIndex({weights.data(), weights.data() + kLookupWeights}, noise_weights, table, remembered);
          },
          nb::arg("weights"), nb::arg("noise_weights"), nb::arg("table").none(), nb::arg("remembered"),
          nb::keep_alive<1, 4>())
      .def("__len__", &LookupIndex::size)
      .def(
          "extend",
          [](LookupIndex& index, const std::vector<int32_t>& tokens) { index.extend(tokens.data(), tokens.size()); },
          nb::arg("tokens"))
      .def(
          "learn",
          [](LookupIndex& index, int64_t previous, int32_t token, const std::vector<int32_t>& ids,
             const std::vector<double>& shares) {
            if (ids.size() != shares.size()) throw nb::value_error("one share per id");
            index.learn(previous, token, ids.data(), shares.data(), ids.size());
          },
          nb::arg("previous"), nb::arg("token"), nb::arg("ids"), nb::arg("shares"))
      .def("propose", &propose, nb::arg("context"), nb::arg("depth"), nb::arg("nodes"), nb::arg("vocabulary"),
           nb::arg("least"), nb::arg("branching"), nb::arg("noise").none() = nb::none());
}
