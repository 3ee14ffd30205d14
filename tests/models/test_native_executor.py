"""The native executor against the PyTorch reference, its storage forms, and what it refuses.

Over 400 lines: one executor, held to one reference in every form, on shared fixtures.
"""

import dataclasses
import os
import threading

import pytest
import torch

from pilotfish import _native
from pilotfish.errors import (
    CacheFullError,
    CorruptModelError,
    InvalidInputError,
    PilotfishError,
    RowsError,
    UnsupportedModelError,
)
from pilotfish.models.base import Segment
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.torch_executor import TorchExecutor
from tests.models import tiny_families
from tests.native.native_models import (
    GROUPED,
    ODD,
    PLAIN,
    RICH,
    TensorWeights,
    config,
    executor,
    grouped_form,
    grouped_forms,
    random_tensors,
    random_tokens,
    shapes,
)

TREE = (-1, 0, 0, -1, 1, 1, 4, 6)


def chain_logits(run, tokens):
    sequence = run.open(len(tokens))
    logits = run.forward([Segment(sequence, tokens)]).logits
    run.close(sequence)
    return logits


def native(decoder, tensors, weight_type="float32", **options):
    return NativeExecutor(decoder, TensorWeights(tensors), weight_type=weight_type, threads=1, **options)


@pytest.mark.parametrize("case", tiny_families.CASES)
def test_every_family_is_close_to_the_reference(case):
    decoder, weights = tiny_families.tiny_config(case), tiny_families.tiny_weights(case)
    ours = NativeExecutor(decoder, weights, weight_type="float32", threads=2)
    reference = TorchExecutor(decoder, weights, dtype=torch.float64)
    prompt, tokens = tiny_families.random_tokens(30), tiny_families.random_tokens(len(TREE), seed=1)
    got, expected = [], []
    for run, outputs in ((ours, got), (reference, expected)):
        sequence = run.open(60)
        outputs.append(run.forward([Segment(sequence, prompt)]).logits)
        run.keep(sequence, range(20))
        passed = run.forward([Segment(sequence, tokens, TREE)], capture=range(decoder.num_layers + 1))
        outputs.extend([passed.logits, *(passed.hidden[i] for i in range(decoder.num_layers + 1))])
        run.keep(sequence, [0, 1, 4])
        outputs.append(run.forward([Segment(sequence, tokens)]).logits)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [PLAIN, RICH])
def test_bfloat16_storage_is_exact_for_bfloat16_weights(shape):
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in random_tensors(shape).items()}
    tokens = random_tokens(20)
    stored = native(shape, tensors, "bfloat16")
    widened = native(shape, {name: tensor.float() for name, tensor in tensors.items()})
    automatic = NativeExecutor(shape, TensorWeights(tensors, half=True), threads=1)
    assert stored.weight_bytes * 2 == widened.weight_bytes
    assert automatic.weight_bytes == stored.weight_bytes
    expected = chain_logits(widened, tokens)
    assert torch.equal(chain_logits(stored, tokens), expected)
    assert torch.equal(chain_logits(automatic, tokens), expected)


@pytest.mark.parametrize("shape", [PLAIN, RICH, ODD])
def test_bfloat16_compute_rounds_the_inputs_of_each_matrix_and_nothing_else(shape):
    """Beside PyTorch's float32 with a rounding before each linear layer and the head."""
    tensors = {name: tensor.to(torch.bfloat16).float() for name, tensor in random_tensors(shape).items()}
    reference = TorchExecutor(shape, TensorWeights(tensors))

    def rounded(module, inputs):
        return tuple(each.to(torch.bfloat16).to(each.dtype) for each in inputs)

    tokens = random_tokens(20)
    unrounded = chain_logits(reference, tokens)
    linears = [module for module in reference.decoder.modules() if isinstance(module, torch.nn.Linear)]
    for linear in linears:
        linear.register_forward_pre_hook(rounded)
    # The head's weights are multiplied without its module.
    reference.decoder.model.norm.register_forward_hook(lambda module, inputs, out: rounded(module, (out,))[0])
    expected = chain_logits(reference, tokens)
    got = chain_logits(native(shape, tensors, "bfloat16-compute"), tokens)
    # Where the two sums differ in their last bit, an input may round the other way: a few values, and by little.
    assert (got - expected).abs().mean() < 0.1 * (unrounded - expected).abs().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_bfloat16_storage_rounds_to_nearest_even(dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(PLAIN).items()}
    # PyTorch rounds to nearest even as well. Norms stay float32.
    rounded = {
        name: tensor.to(torch.bfloat16).float() if tensor.ndim == 2 else tensor.float()
        for name, tensor in tensors.items()
    }
    tokens = random_tokens(20)
    got, expected = (
        chain_logits(native(PLAIN, tensors, "bfloat16"), tokens),
        chain_logits(native(PLAIN, rounded), tokens),
    )
    assert torch.equal(got, expected)


def test_grouped_storage_equals_the_dequantised_weights_but_for_rounding():
    tensors = random_tensors(GROUPED)
    forms = grouped_forms(tensors)
    assert {form.minimums is None for form in forms.values()} == {True, False}
    dequantised = {name: forms[name].dequantise() if name in forms else tensor for name, tensor in tensors.items()}
    tokens = random_tokens(30)
    stored = NativeExecutor(GROUPED, TensorWeights(tensors, forms), threads=1)
    assert stored.weight_bytes < native(GROUPED, tensors).weight_bytes / 3
    torch.testing.assert_close(
        chain_logits(stored, tokens), chain_logits(native(GROUPED, dequantised), tokens), atol=2e-4, rtol=1e-5
    )
    sequence = stored.open(4)
    embedded = stored.forward([Segment(sequence, tokens[:4], logits_from=4)], capture=[0]).hidden[0]
    assert torch.equal(embedded, dequantised["model.embed_tokens.weight"][tokens[:4]])


def test_scales_beyond_float16_are_kept_in_float32():
    tensors = random_tensors(GROUPED)
    forms = grouped_forms(tensors)
    finer = {
        name: dataclasses.replace(
            form,
            scales=form.scales * 1.0001,
            minimums=None if form.minimums is None else form.minimums * 1.0001,
        )
        for name, form in forms.items()
    }
    dequantised = {name: finer[name].dequantise() if name in finer else tensor for name, tensor in tensors.items()}
    stored = NativeExecutor(GROUPED, TensorWeights(tensors, finer), threads=1)
    coarse = NativeExecutor(GROUPED, TensorWeights(tensors, forms), threads=1)
    assert stored.weight_bytes > coarse.weight_bytes
    tokens = random_tokens(20)
    torch.testing.assert_close(
        chain_logits(stored, tokens), chain_logits(native(GROUPED, dequantised), tokens), atol=2e-4, rtol=1e-5
    )


def test_int8_of_float_weights_quantises_in_groups_of_32():
    tensors = random_tensors(GROUPED)
    rounded = {
        name: grouped_form(tensor, 8, minimum=False).dequantise() if tensor.ndim == 2 else tensor
        for name, tensor in tensors.items()
    }
    tokens = random_tokens(20)
    got = chain_logits(native(GROUPED, tensors, "int8"), tokens)
    torch.testing.assert_close(got, chain_logits(native(GROUPED, rounded), tokens), atol=2e-4, rtol=1e-5)


def test_weight_types_differ_so_that_the_tests_above_can_fail():
    tensors, tokens = random_tensors(PLAIN), random_tokens(20)
    full = chain_logits(native(PLAIN, tensors), tokens)
    for weight_type in ("bfloat16", "bfloat16-compute", "int8"):
        difference = (chain_logits(native(PLAIN, tensors, weight_type), tokens) - full).abs().max()
        assert 1e-3 < difference < 1.0


@pytest.mark.parametrize("name", sorted(shapes(RICH)))
def test_missing_and_misshaped_tensors_are_refused_by_name(name):
    tensors = random_tensors(RICH)
    tensors[name] = tensors[name][..., :-1]
    with pytest.raises(CorruptModelError, match=name.replace(".", r"\.")):
        native(RICH, tensors)


def test_misshaped_groups_are_refused_by_name():
    tensors = random_tensors(GROUPED)
    forms = grouped_forms(tensors)
    name = "model.layers.1.mlp.down_proj.weight"
    forms[name] = dataclasses.replace(forms[name], scales=forms[name].scales[:, :-1])
    with pytest.raises(CorruptModelError, match=name.replace(".", r"\.")):
        NativeExecutor(GROUPED, TensorWeights(tensors, forms), threads=1)


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": 100000},
        {"kv_cache_tokens": 0},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidInputError, match="expected"):
        NativeExecutor(PLAIN, TensorWeights(random_tensors(PLAIN)), **options)


def test_impossible_configurations_are_refused():
    for broken in (config(num_heads=5), config(head_dim=14), config(layers=(PLAIN.layers[0],) * 2, num_kv_heads=4)):
        broken = dataclasses.replace(broken, layers=PLAIN.layers)
        with pytest.raises(UnsupportedModelError, match="native executor"):
            NativeExecutor(broken, TensorWeights(random_tensors(broken)))


@pytest.mark.parametrize("weight_type", ["float32", "bfloat16-compute"])
def test_maxima_are_those_of_blocks_of_logits(weight_type):
    """The vocabulary ends within a block, and 67 rows are more than are looked at together."""
    tensors = random_tensors(PLAIN)
    tokens, last = random_tokens(70), PLAIN.vocab_size // 32 * 32
    assert last < PLAIN.vocab_size

    def run():
        each = native(PLAIN, tensors, weight_type)
        output = each.forward([Segment(each.open(70), tokens, logits_from=3)])
        return output.maxima, torch.stack([block.amax(1) for block in output.logits.split(32, dim=1)], 1)

    maxima, expected = run()
    assert torch.equal(maxima, expected)
    assert (expected[:, -1] < 0).any(), "what is beyond the vocabulary is zero, and does not count"
    tokens[-1] = next(token for token in range(PLAIN.vocab_size) if token not in tokens)
    _, expected = run()
    tensors["model.embed_tokens.weight"][tokens[-1]] = torch.nan  # no other row sees the last one
    maxima, _ = run()
    assert torch.equal(maxima[-1], torch.full_like(maxima[-1], torch.inf))
    assert torch.equal(maxima[:-1], expected[:-1])


@pytest.fixture
def opened():
    """An executor with a sequence of 9 committed tokens and the nodes of `TREE`."""
    run = executor("plain-float32", threads=2)
    sequence = run.open(40)
    run.forward([Segment(sequence, random_tokens(9))])
    run.keep(sequence, range(9))
    run.forward([Segment(sequence, random_tokens(8, seed=1), TREE)])
    return run, sequence


BAD_PASSES = {
    "no segments": ([], {}),
    "no tokens": ([([], {})], {}),
    "token too large": ([([101], {})], {}),
    "token negative": ([([-1], {})], {}),
    "token beyond 64 bits": ([([2**70], {})], {}),
    "parent later": ([([1, 2], {"parents": (1, 0)})], {}),
    "parent itself": ([([1], {"parents": (0,)})], {}),
    "parent below the prefix": ([([1], {"parents": (-2,)})], {}),
    "too few parents": ([([1, 2], {"parents": (-1,)})], {}),
    "first node beyond": ([([1], {"first_node": 11})], {}),
    "first node negative": ([([1], {"first_node": -1})], {}),
    "logits beyond": ([([1], {"logits_from": 2})], {}),
    "logits negative": ([([1], {"logits_from": -1})], {}),
    "layers backwards": ([([1], {})], {"layers": (1, 0)}),
    "layers empty": ([([1], {})], {"layers": (1, 1)}),
    "layers beyond": ([([1], {})], {"layers": (0, 3)}),
    "no hidden": ([([1], {})], {"layers": (1, 2)}),
    "hidden of other width": ([([1], {})], {"layers": (1, 2), "hidden_in": torch.zeros(1, 41)}),
    "hidden of other height": ([([1], {})], {"layers": (1, 2), "hidden_in": torch.zeros(2, 40)}),
    "hidden at the start": ([([1], {})], {"hidden_in": torch.zeros(1, 40)}),
    "capture beyond": ([([1], {})], {"capture": [3]}),
    "capture before": ([([1], {})], {"layers": (1, 2), "hidden_in": torch.zeros(1, 40), "capture": [0]}),
    "two segments": ([([1], {}), ([2], {})], {}),
    "upper layers of new nodes": (
        [([1] * 9, {})],
        {"layers": (1, 2), "hidden_in": torch.zeros(9, 40)},
    ),
    "upper layers below another parent": (
        [([1, 2, 3], {})],
        {"layers": (1, 2), "hidden_in": torch.zeros(3, 40)},
    ),
}


@pytest.mark.parametrize("name", BAD_PASSES)
def test_bad_pass_is_refused_and_changes_nothing(opened, name):
    run, sequence = opened
    segments, options = BAD_PASSES[name]
    good = Segment(sequence, [1, 2], (7, 5), first_node=8)
    before = run.forward([good]).logits
    with pytest.raises(RowsError):
        run.forward([Segment(sequence, tokens, **extra) for tokens, extra in segments], **options)
    assert run.length(sequence) == 9
    assert torch.equal(run.forward([good]).logits, before)


def test_full_cache_is_refused_and_changes_nothing(opened):
    run, sequence = opened
    good = Segment(sequence, [1, 2], (7, 5), first_node=8)
    before = run.forward([good]).logits
    with pytest.raises(CacheFullError, match="opened for 40"):
        run.forward([Segment(sequence, [1] * 24, first_node=8)])
    run.forward([Segment(sequence, [1] * 23, first_node=8)])
    assert torch.equal(run.forward([good]).logits, before)


def test_bad_calls_are_refused(opened):
    run, sequence = opened
    for call in (
        lambda: run.open(0),
        lambda: run.open(-(2**70)),
        lambda: run.close(sequence + 1),
        lambda: run.close(-1),
        lambda: run.length(2**70),
        lambda: run.keep(sequence, [8]),
        lambda: run.keep(sequence, [-1]),
        lambda: run.keep(sequence, [1]),
        lambda: run.keep(sequence, [0, 4]),
        lambda: run.truncate(sequence, 10),
        lambda: run.truncate(sequence, -1),
        lambda: run.forward([Segment(sequence + 1, [1])]),
    ):
        with pytest.raises(RowsError):
            call()
    run.keep(sequence, [0, 1, 4, 6, 7])
    assert run.length(sequence) == 14
    run.close(sequence)
    with pytest.raises(RowsError, match="not open"):
        run.forward([Segment(sequence, [1])])


def test_pages_are_taken_as_they_are_needed_and_given_back():
    run = executor("plain-float32", kv_cache_tokens=100)
    assert (run.page_size, run.total_pages, run.free_pages) == (32, 4, 4)
    first, second = run.open(33), run.open(100)
    assert run.free_pages == 4
    run.forward([Segment(first, random_tokens(33)), Segment(second, random_tokens(31))])
    assert run.free_pages == 1
    run.keep(first, range(32))
    assert run.free_pages == 2, "the dropped node's page"
    run.keep(second, range(31))
    with pytest.raises(CacheFullError, match="needs 3 more pages of the cache; 2 of 4 are free"):
        run.forward([Segment(first, [1]), Segment(second, random_tokens(40))])
    run.truncate(first, 0)
    assert run.free_pages == 3
    run.close(second)
    assert run.free_pages == 4
    with pytest.raises(CacheFullError, match="there are 4 pages"):
        run.open(2**62)
    assert run.open(1) == second


def test_sequence_of_lower_layers_refuses_the_upper_ones_until_truncated():
    run = executor("plain-float32")
    sequence = run.open(20)
    run.forward([Segment(sequence, [1, 2, 3], logits_from=3)], layers=(0, 1))
    run.keep(sequence, [0, 1, 2])
    run.forward([Segment(sequence, [4])], layers=(0, 1))
    with pytest.raises(RowsError, match="1 layers only"):
        run.forward([Segment(sequence, [4])])
    run.truncate(sequence, 0)
    assert torch.equal(run.forward([Segment(sequence, [1, 2])]).logits, chain_logits(run, [1, 2]))


def test_hidden_in_of_any_memory_layout_is_understood():
    run = executor("plain-float32")
    sequence = run.open(20)
    lower = run.forward([Segment(sequence, [1, 2, 3], logits_from=3)], layers=(0, 1), capture=[1])
    expected = run.forward([Segment(sequence, [1, 2, 3])], layers=(1, 2), hidden_in=lower.hidden[1]).logits
    strided = lower.hidden[1].to(torch.float64).T.contiguous().T.requires_grad_()
    assert not strided.is_contiguous()
    assert torch.equal(run.forward([Segment(sequence, [1, 2, 3])], layers=(1, 2), hidden_in=strided).logits, expected)
    assert not expected.requires_grad


def test_executor_describes_itself():
    run = executor("rich-bfloat16", threads=3)
    assert run.exact
    assert run.config is RICH
    assert run.threads == 3
    assert run.page_bytes == 3 * 2 * 32 * (12 + 16) * 4
    assert 1 <= _native.available_cores() <= (os.cpu_count() or 1)
    assert set(_native.instruction_sets()) <= {"avx512bf16", "avx512", "avx2", "neon", "portable"}
    assert all(isinstance(feature, str) for feature in _native.cpu_features())
    assert _native.measure_bandwidth(1) > 1e8
    assert _native.measure_flops(1) > 1e8


def test_two_threads_at_once_are_refused_or_served_never_mixed():
    run = executor("plain-float32")
    tokens = random_tokens(60)
    expected = chain_logits(run, tokens)
    sequences = [run.open(60) for _ in range(4)]
    served, refused, wrong = [], [], []

    def use(sequence):
        for _ in range(30):
            try:
                logits = run.forward([Segment(sequence, tokens)]).logits
            except PilotfishError as error:
                refused.append(str(error))
            else:
                (served if torch.equal(logits, expected) else wrong).append(sequence)

    workers = [threading.Thread(target=use, args=(sequence,)) for sequence in sequences]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert served
    assert not wrong
    assert len(served) + len(refused) == 120
    assert all("another thread" in message for message in refused)


def test_two_executors_take_turns_from_two_threads():
    runs = [executor("plain-float32", threads=2), executor("rich-float32", threads=3)]
    tokens = random_tokens(40)
    expected = [chain_logits(run, tokens) for run in runs]
    results = [[], []]

    def use(which):
        for _ in range(20):
            results[which].append(torch.equal(chain_logits(runs[which], tokens), expected[which]))

    workers = [threading.Thread(target=use, args=(which,)) for which in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [[True] * 20] * 2


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_after_use_neither_hangs_nor_changes_bits():
    run = executor("plain-float32", threads=2)
    tokens = random_tokens(30)
    expected = chain_logits(run, tokens)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            same = all(torch.equal(chain_logits(run, tokens), expected) for _ in range(3))
            os.write(writing, b"same" if same else b"different")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"same"
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(chain_logits(run, tokens), expected)
