"""The promise itself: a row's bits depend on its own prefix and on nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish import _native
from pilotfish.models.base import Segment
from tests.native.native_models import MODELS, executor, random_tokens

CAPACITY = 400


@pytest.fixture(scope="module")
def executors():
    """Each model at 1 to 4 threads."""
    return {(model, threads): executor(model, threads) for model in MODELS for threads in (1, 2, 3, 4)}


@pytest.fixture(autouse=True)
def best_isa():
    yield
    _native.select_isa("auto")


def one_by_one(run, tokens):
    """Logits of a chain from one-row passes, each row kept before the next: plain decoding."""
    sequence = run.open(CAPACITY)
    rows = []
    for token in tokens:
        rows.append(run.forward([Segment(sequence, [token])]).logits)
        run.keep(sequence, [0])
    run.close(sequence)
    return torch.cat(rows)


def prefilled(run, tokens, chunks=()):
    sequence = run.open(CAPACITY)
    start = 0
    for stop in [*chunks, len(tokens)]:
        if stop > start:
            part = tokens[start:stop]
            run.forward([Segment(sequence, part, logits_from=len(part))])
            run.keep(sequence, range(len(part)))
            start = stop
    return sequence


def random_parents(count, seed, spread):
    """A tree in which node i hangs below one of the `spread` nodes before it, or below the prefix."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, spread + 1, (count,), generator=generator).tolist()
    return [max(-1, node - step) for node, step in enumerate(steps)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("rows", [*range(1, 34), 256])
def test_chain_of_many_rows_equals_one_row_passes(executors, model, rows):
    prefix, tokens = random_tokens(5, seed=rows), random_tokens(rows, seed=rows + 1)
    expected = one_by_one(executors[model, 1], prefix + tokens)[len(prefix) :]
    run = executors[model, 2]
    sequence = prefilled(run, prefix)
    got = run.forward([Segment(sequence, tokens)]).logits
    run.close(sequence)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    prefix=st.integers(0, 70),
    count=st.integers(1, 40),
    spread=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    threads=st.integers(1, 4),
)
def test_tree_rows_equal_plain_decoding_of_their_paths(executors, model, prefix, count, spread, seed, threads):
    parents = random_parents(count, seed, spread)
    before, tokens = random_tokens(prefix, seed), random_tokens(count, seed + 1)
    run = executors[model, threads]
    sequence = prefilled(run, before)
    got = run.forward([Segment(sequence, tokens, parents)]).logits
    run.close(sequence)
    # Three nodes in plain decoding, the deepest-numbered among them.
    for node in {count - 1, seed % count, count // 2}:
        path = []
        at = node
        while at != -1:
            path.append(at)
            at = parents[at]
        chain = before + [tokens[step] for step in reversed(path)]
        assert torch.equal(got[node], one_by_one(executors[model, 1], chain)[-1])


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    cuts=st.lists(st.integers(1, 39), max_size=3),
    spread=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    threads=st.integers(1, 4),
)
def test_mixed_batches_chunks_and_pages_change_nothing(executors, model, lengths, cuts, spread, seed, threads):
    run = executors[model, threads]
    # Sequences opened, filled and closed out of order leave the free pages in a random order.
    others = [prefilled(run, random_tokens(100, seed + 50 + i)) for i in range(3)]
    for which in (seed % 3, (seed + 2) % 3):
        run.close(others[which])
    segments, expected, opened = [], [], []
    for i, length in enumerate(lengths):
        prompt, tokens = random_tokens(length, seed + i), random_tokens(1 + i * 3, seed + 20 + i)
        sequence = prefilled(run, prompt, sorted(cut for cut in cuts if cut < length))
        parents = None if i % 2 else random_parents(len(tokens), seed, spread)
        segments.append(Segment(sequence, tokens, parents))
        opened.append(sequence)
        alone = executors[model, 1]
        fresh = prefilled(alone, prompt)
        expected.append(alone.forward([Segment(fresh, tokens, parents)]).logits)
        alone.close(fresh)
    got = run.forward(segments).logits
    for sequence in [*opened, others[(seed + 1) % 3]]:
        run.close(sequence)
    assert run.free_pages == run.total_pages
    assert torch.equal(got, torch.cat(expected))


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(rounds=st.integers(1, 6), spread=st.integers(1, 4), seed=st.integers(0, 10**6), threads=st.integers(1, 4))
def test_rounds_of_trees_kept_and_truncated_equal_plain_decoding(executors, model, rounds, spread, seed, threads):
    run = executors[model, threads]
    committed = random_tokens(seed % 40, seed)
    sequence = prefilled(run, committed)
    for number in range(rounds):
        count = 2 + (seed + number) % 11
        tokens, parents = random_tokens(count, seed + number), random_parents(count, seed + number, spread)
        run.forward([Segment(sequence, tokens, parents)])
        path = []
        at = (seed // 7 + number) % count
        while at != -1:
            path.append(at)
            at = parents[at]
        path.reverse()
        run.keep(sequence, path)
        committed = committed + [tokens[node] for node in path]
        if number % 3 == 2:
            committed = committed[: len(committed) // 2]
            run.truncate(sequence, len(committed))
        assert run.length(sequence) == len(committed)
    got = run.forward([Segment(sequence, [7, 8, 9])]).logits
    run.close(sequence)
    assert torch.equal(got, one_by_one(executors[model, 1], [*committed, 7, 8, 9])[-3:])


@pytest.mark.parametrize("model", MODELS)
def test_hidden_states_and_layer_ranges_equal_the_whole_pass(executors, model):
    run = executors[model, 2]
    layers = run.config.num_layers
    tokens, parents = random_tokens(9, seed=4), random_parents(9, 11, 3)
    sequence = prefilled(run, random_tokens(33, seed=5))
    whole = run.forward([Segment(sequence, tokens, parents)], capture=range(layers + 1))
    for middle in range(1, layers):
        lower = run.forward(
            [Segment(sequence, tokens, parents, logits_from=9)], layers=(0, middle), capture=[0, middle]
        )
        upper = run.forward(
            [Segment(sequence, tokens, parents)],
            layers=(middle, layers),
            hidden_in=lower.hidden[middle],
            capture=[layers],
        )
        assert torch.equal(lower.hidden[0], whole.hidden[0])
        assert torch.equal(lower.hidden[middle], whole.hidden[middle])
        assert torch.equal(upper.hidden[layers], whole.hidden[layers])
        assert torch.equal(upper.logits, whole.logits)
    run.close(sequence)


@pytest.mark.parametrize("model", MODELS)
def test_instruction_sets_agree_bit_for_bit(executors, model):
    run = executors[model, 2]
    names = _native.instruction_sets()
    assert names[-1] == "portable"
    tokens, parents = random_tokens(23, seed=8), random_parents(23, 5, 3)
    prompt, branch = random_tokens(45, seed=9), random_tokens(9, seed=6)
    outputs = []
    for name in names:
        assert _native.select_isa(name)
        assert _native.isa() == name
        first, second = prefilled(run, prompt), prefilled(run, prompt[:7])
        outputs.append(run.forward([Segment(first, tokens, parents), Segment(second, branch)]).logits)
        run.close(first)
        run.close(second)
    assert not _native.select_isa("sse9")
    for output in outputs[1:]:
        assert torch.equal(output, outputs[0])


def test_callers_float_mode_does_not_reach_the_bits(executors):
    run = executors["plain-float32", 1]
    tokens = random_tokens(12)
    expected = one_by_one(run, tokens)
    assert torch.set_flush_denormal(True)
    try:
        assert torch.equal(one_by_one(run, tokens), expected)
    finally:
        torch.set_flush_denormal(False)
