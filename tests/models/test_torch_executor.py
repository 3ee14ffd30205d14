"""The PyTorch executor keeps the contract. Over 400 lines: one contract, clause by clause, on shared fixtures."""

import dataclasses
import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.errors import CacheFullError, RowsError
from pilotfish.models.base import Segment
from pilotfish.models.torch_executor import TorchExecutor
from tests.models.tiny_families import VOCAB_SIZE, random_tokens, tiny_config, tiny_executor, tiny_weights

# Between them: chains, windows of alternating layers shorter than the prefix, layers without positions, QK norm.
FAMILIES = ["llama", "mistral-window", "smollm3-biases-window", "gemma3"]
CAPACITY = 40

# A tree of depth 4 with siblings, two roots, and branches that interleave.
#   0 ─ 1 ─ 4 ─ 6 ─ 7
#   │   └── 5
#   └── 2
#   3
TREE = (-1, 0, 0, -1, 1, 1, 4, 6)


@pytest.fixture(scope="module")
def executors():
    """In float64, so that a difference is a mistake and not the rounding of another order of summation."""
    return {case: tiny_executor(case, torch.float64) for case in FAMILIES}


def prefilled(executor, tokens, capacity=CAPACITY):
    sequence = executor.open(capacity)
    if tokens:
        executor.forward([Segment(sequence, tokens, logits_from=len(tokens))])
        executor.keep(sequence, range(len(tokens)))
    return sequence


def chain_logits(executor, tokens):
    """Every row's logits, from a fresh sequence in one pass."""
    sequence = executor.open(len(tokens))
    logits = executor.forward([Segment(sequence, tokens)]).logits
    executor.close(sequence)
    return logits


def path_to(parents, node):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


def assert_close(got, expected, tolerance=1e-5):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", FAMILIES)
def test_tree_rows_equal_the_chain_of_each_path(executors, case):
    executor = executors[case]
    prefix, tokens = random_tokens(11), random_tokens(len(TREE), seed=1)
    sequence = prefilled(executor, prefix)
    logits = executor.forward([Segment(sequence, tokens, TREE)]).logits
    assert executor.length(sequence) == len(prefix)
    for node in range(len(TREE)):
        path = path_to(TREE, node)
        expected = chain_logits(executor, prefix + [tokens[step] for step in path])[-1]
        assert_close(logits[node], expected)


@pytest.mark.parametrize("case", FAMILIES)
def test_tree_without_a_prefix_equals_the_chain_of_each_path(executors, case):
    executor = executors[case]
    tokens = random_tokens(len(TREE), seed=2)
    logits = executor.forward([Segment(executor.open(CAPACITY), tokens, TREE)]).logits
    for node in range(len(TREE)):
        assert_close(logits[node], chain_logits(executor, [tokens[step] for step in path_to(TREE, node)])[-1])


def test_siblings_with_the_same_token_have_the_same_logits(executors):
    executor = executors["gemma3"]
    sequence = prefilled(executor, random_tokens(6))
    logits = executor.forward([Segment(sequence, [5, 5, 9], [-1, -1, 0])]).logits
    assert_close(logits[0], logits[1])
    assert (logits[2] - logits[0]).abs().max() > 0.1


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("path", [(), (0,), (3,), (0, 2), (0, 1, 5), (0, 1, 4, 6, 7)], ids=str)
def test_keep_then_going_on_equals_a_fresh_run(executors, case, path):
    executor = executors[case]
    prefix, tokens, following = random_tokens(11), random_tokens(len(TREE), seed=1), random_tokens(6, seed=2)
    sequence = prefilled(executor, prefix)
    executor.forward([Segment(sequence, tokens, TREE)])
    executor.keep(sequence, path)
    kept = prefix + [tokens[node] for node in path]
    assert executor.length(sequence) == len(kept)
    logits = executor.forward([Segment(sequence, following)]).logits
    assert_close(logits, chain_logits(executor, kept + following)[len(kept) :])


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("length", [0, 1, 7, 11])
def test_truncate_then_going_on_equals_a_fresh_run(executors, case, length):
    executor = executors[case]
    prefix, following = random_tokens(11), random_tokens(6, seed=2)
    sequence = prefilled(executor, prefix)
    executor.forward([Segment(sequence, random_tokens(4, seed=3))])  # nodes, to be dropped too
    executor.truncate(sequence, length)
    assert executor.length(sequence) == length
    with pytest.raises(RowsError, match="it has 0 nodes"):
        executor.keep(sequence, [0])
    logits = executor.forward([Segment(sequence, following)]).logits
    assert_close(logits, chain_logits(executor, prefix[:length] + following)[length:])


@pytest.mark.parametrize("case", FAMILIES)
def test_nodes_added_over_several_passes_equal_one_pass(executors, case):
    executor = executors[case]
    prefix, tokens = random_tokens(11), random_tokens(len(TREE), seed=1)
    whole = executor.forward([Segment(prefilled(executor, prefix), tokens, TREE)]).logits
    sequence = prefilled(executor, prefix)
    parts = [
        executor.forward([Segment(sequence, tokens[start:stop], TREE[start:stop], first_node=start)]).logits
        for start, stop in ((0, 3), (3, 4), (4, 8))
    ]
    assert_close(torch.cat(parts), whole)


def test_rows_replace_the_nodes_from_first_node_on(executors):
    executor = executors["gemma3"]
    prefix = random_tokens(8)
    sequence = prefilled(executor, prefix)
    executor.forward([Segment(sequence, [1, 2, 3, 4])])
    logits = executor.forward([Segment(sequence, [7, 8], first_node=2)]).logits
    assert_close(logits, chain_logits(executor, [*prefix, 1, 2, 7, 8])[-2:])
    with pytest.raises(RowsError, match="it has 4 nodes"):
        executor.keep(sequence, [0, 1, 2, 3, 4])
    executor.keep(sequence, [0, 1, 2, 3])
    assert_close(
        executor.forward([Segment(sequence, [9])]).logits, chain_logits(executor, [*prefix, 1, 2, 7, 8, 9])[-1:]
    )


@pytest.mark.parametrize("case", FAMILIES)
def test_batch_of_mixed_sequences_equals_each_alone(executors, case):
    executor = executors[case]
    plans = [  # prefix length, tokens, parents
        (0, random_tokens(9, seed=1), None),
        (13, random_tokens(1, seed=2), None),
        (3, random_tokens(len(TREE), seed=3), TREE),
        (7, random_tokens(5, seed=4), None),
    ]

    def segment(plan):
        length, tokens, parents = plan
        return Segment(prefilled(executor, random_tokens(length, seed=length)), tokens, parents)

    alone = [executor.forward([segment(plan)], capture=[2]) for plan in plans]
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        segments = [segment(plans[index]) for index in order]
        together = executor.forward(segments, capture=[2])
        assert_close(together.logits, torch.cat([alone[index].logits for index in order]))
        assert_close(together.hidden[2], torch.cat([alone[index].hidden[2] for index in order]))
        for each in segments:  # and what they left in their caches
            executor.keep(each.sequence, [0])
        following = executor.forward([Segment(each.sequence, [5]) for each in segments]).logits
        for row, index in enumerate(order):
            length, tokens, _ = plans[index]
            kept = [*random_tokens(length, seed=length), tokens[0], 5]
            assert_close(following[row], chain_logits(executor, kept)[-1])


def test_logits_only_for_the_rows_asked_for(executors):
    executor = executors["llama"]
    tokens = [random_tokens(5, seed=seed) for seed in range(3)]
    whole = torch.stack([chain_logits(executor, each) for each in tokens])
    segments = [Segment(executor.open(5), tokens[index], logits_from=start) for index, start in enumerate((3, 5, 0))]
    logits = executor.forward(segments).logits
    assert_close(logits, torch.cat((whole[0, 3:], whole[2])))
    none = executor.forward([Segment(executor.open(5), tokens[0], logits_from=5)]).logits
    assert none.shape == (0, VOCAB_SIZE)


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("middle", [1, 2, 3])
def test_layers_in_two_halves_equal_the_whole(executors, case, middle):
    executor = executors[case]
    prefix, tokens, following = random_tokens(9), random_tokens(len(TREE), seed=1), random_tokens(3, seed=2)
    num_layers = executor.config.num_layers
    whole_sequence = prefilled(executor, prefix)
    whole = executor.forward([Segment(whole_sequence, tokens, TREE)], capture=[middle, num_layers])
    sequence = prefilled(executor, prefix)
    lower = executor.forward(
        [Segment(sequence, tokens, TREE, logits_from=len(tokens))], layers=(0, middle), capture=[middle]
    ).hidden[middle]
    assert_close(lower, whole.hidden[middle])
    upper = executor.forward(
        [Segment(sequence, tokens, TREE)], layers=(middle, num_layers), hidden_in=lower, capture=[num_layers]
    )
    # Hidden states are handed on as float32, whose rounding the upper layers magnify.
    assert_close(upper.logits, whole.logits, 1e-4)
    assert_close(upper.hidden[num_layers], whole.hidden[num_layers], 1e-4)
    for each in (sequence, whole_sequence):
        executor.keep(each, [0, 1, 5])
    after = [executor.forward([Segment(each, following)]).logits for each in (sequence, whole_sequence)]
    assert_close(after[0], after[1], 1e-4)


@pytest.mark.parametrize("case", FAMILIES)
def test_early_exit_draft_then_upper_layers_equals_the_whole(executors, case):
    """Self-speculation: draft token by token with the lower layers, then verify all rows with the rest."""
    executor = executors[case]
    prefix, tokens = random_tokens(9), random_tokens(5, seed=1)
    sequence = prefilled(executor, prefix)
    states = []
    for node, token in enumerate(tokens):
        output = executor.forward([Segment(sequence, [token], first_node=node)], layers=(0, 2), capture=[2])
        assert output.logits.shape == (1, VOCAB_SIZE)  # the early exit's own opinion
        states.append(output.hidden[2])
    logits = executor.forward([Segment(sequence, tokens)], layers=(2, 4), hidden_in=torch.cat(states)).logits
    assert_close(logits, chain_logits(executor, prefix + tokens)[len(prefix) :], 1e-4)


def test_upper_layers_of_fewer_nodes_drop_the_rest(executors):
    executor = executors["llama"]
    prefix = random_tokens(4)
    sequence = prefilled(executor, prefix)
    states = executor.forward([Segment(sequence, [1, 2, 3])], layers=(0, 2), capture=[2]).hidden[2]
    executor.forward([Segment(sequence, [1, 2])], layers=(2, 4), hidden_in=states[:2])
    executor.keep(sequence, [0, 1])
    logits = executor.forward([Segment(sequence, [8])]).logits
    assert_close(logits, chain_logits(executor, [*prefix, 1, 2, 8])[-1:], 1e-4)


def test_a_sequence_may_live_in_the_lower_layers_only(executors):
    executor = executors["llama"]
    tokens = random_tokens(8)
    whole = executor.forward([Segment(executor.open(8), tokens)], layers=(0, 2)).logits
    sequence = executor.open(8)
    executor.forward([Segment(sequence, tokens[:5])], layers=(0, 2))
    executor.keep(sequence, range(5))
    assert_close(executor.forward([Segment(sequence, tokens[5:])], layers=(0, 2)).logits, whole[5:])
    with pytest.raises(RowsError, match="committed tokens went through 2 layers only"):
        executor.forward([Segment(sequence, tokens[5:])])
    executor.truncate(sequence, 0)
    assert_close(executor.forward([Segment(sequence, tokens)]).logits, chain_logits(executor, tokens))


def test_layer_range_above_other_layers_than_before_is_refused(executors):
    executor = executors["llama"]
    sequence = prefilled(executor, random_tokens(4))
    states = executor.forward([Segment(sequence, [1, 2], [-1, -1])], layers=(0, 2), capture=[2]).hidden[2]
    upper = {"layers": (2, 4), "hidden_in": states}
    with pytest.raises(RowsError, match=r"node 1 is to go on at layer 2 below parent 0, .* below parent -1"):
        executor.forward([Segment(sequence, [1, 2])], **upper)
    with pytest.raises(RowsError, match="node 0 is to go on at layer 3"):
        executor.forward([Segment(sequence, [1, 2], [-1, -1])], layers=(3, 4), hidden_in=states)
    with pytest.raises(RowsError, match="only 2 nodes exist"):
        executor.forward([Segment(sequence, [1, 2], first_node=1)], **upper)
    with pytest.raises(RowsError, match="its parent 1 went through 2 layers only"):
        executor.forward([Segment(sequence, [3], first_node=2)])
    logits = executor.forward([Segment(sequence, [1, 2], [-1, -1])], **upper).logits
    assert_close(logits[1], chain_logits(executor, [*random_tokens(4), 2])[-1], 1e-4)


# What each error path is given; `s` is an open sequence with 6 committed tokens, 3 nodes and room for 12 positions.
BAD_PASSES = {
    "token above": (lambda s: ([Segment(s, [1, VOCAB_SIZE])], {}), RowsError, "token id 97 is outside"),
    "token below": (lambda s: ([Segment(s, [-1])], {}), RowsError, "token id -1 is outside"),
    "no rows": (lambda s: ([Segment(s, [])], {}), RowsError, "no tokens"),
    "no segments": (lambda s: ([], {}), RowsError, "at least one segment"),
    "same sequence twice": (lambda s: ([Segment(s, [1]), Segment(s, [2])], {}), RowsError, "two segments"),
    "unknown sequence": (lambda s: ([Segment(s, [1]), Segment(999, [1])], {}), RowsError, "sequence 999 is not open"),
    "parent itself": (lambda s: ([Segment(s, [1, 2], [-1, 1])], {}), RowsError, "node 1 has parent 1"),
    "parent later": (lambda s: ([Segment(s, [1, 2], [1, -1])], {}), RowsError, "node 0 has parent 1"),
    "parent below": (lambda s: ([Segment(s, [1], [-2])], {}), RowsError, "node 0 has parent -2"),
    "parents missing": (lambda s: ([Segment(s, [1, 2], [-1])], {}), RowsError, "1 parents for 2 tokens"),
    "first_node beyond": (
        lambda s: ([Segment(s, [1], first_node=4)], {}),
        RowsError,
        "first_node is 4; expected 0 to 3",
    ),
    "first_node below": (lambda s: ([Segment(s, [1], first_node=-1)], {}), RowsError, "first_node is -1"),
    "logits_from beyond": (lambda s: ([Segment(s, [1], logits_from=2)], {}), RowsError, "logits_from is 2"),
    "full": (lambda s: ([Segment(s, [1] * 7)], {}), CacheFullError, "do not fit its capacity of 12"),
    "full with nodes": (lambda s: ([Segment(s, [1] * 4, first_node=3)], {}), CacheFullError, "capacity of 12"),
    "empty layers": (lambda s: ([Segment(s, [1])], {"layers": (2, 2)}), RowsError, r"layers \(2, 2\)"),
    "layers beyond": (lambda s: ([Segment(s, [1])], {"layers": (0, 5)}), RowsError, r"layers \(0, 5\)"),
    "capture outside": (
        lambda s: ([Segment(s, [1])], {"layers": (0, 2), "capture": [3]}),
        RowsError,
        "cannot capture boundary 3",
    ),
    "hidden_in missing": (lambda s: ([Segment(s, [1])], {"layers": (2, 4)}), RowsError, "need hidden_in"),
    "hidden_in not wanted": (
        lambda s: ([Segment(s, [1])], {"hidden_in": torch.zeros(1, 32)}),
        RowsError,
        "leave it out",
    ),
    "hidden_in misshapen": (
        lambda s: ([Segment(s, [1])], {"layers": (2, 4), "hidden_in": torch.zeros(2, 32)}),
        RowsError,
        r"\(2, 32\); expected \(1, 32\)",
    ),
}
BAD_CALLS = {
    "keep of siblings": (lambda executor, s: executor.keep(s, [0, 1, 2]), "goes from 1 to node 2, whose parent is 0"),
    "keep from the middle": (lambda executor, s: executor.keep(s, [1]), "goes from -1 to node 1, whose parent is 0"),
    "keep twice": (lambda executor, s: executor.keep(s, [0, 0]), "goes from 0 to node 0"),
    "keep beyond": (lambda executor, s: executor.keep(s, [0, 3]), "names node 3; it has 3 nodes"),
    "keep below": (lambda executor, s: executor.keep(s, [-1]), "names node -1"),
    "truncate beyond": (lambda executor, s: executor.truncate(s, 7), "cannot truncate to 7; expected 0 to 6"),
    "truncate below": (lambda executor, s: executor.truncate(s, -1), "cannot truncate to -1"),
    "keep of an unknown sequence": (lambda executor, s: executor.keep(999, []), "sequence 999 is not open"),
    "truncate of an unknown sequence": (lambda executor, s: executor.truncate(999, 0), "sequence 999 is not open"),
    "length of an unknown sequence": (lambda executor, s: executor.length(999), "sequence 999 is not open"),
    "close of an unknown sequence": (lambda executor, s: executor.close(999), "sequence 999 is not open"),
    "no capacity": (lambda executor, s: executor.open(0), "capacity is 0"),
}


@pytest.fixture
def sequence_with_nodes(executors):
    """An executor, a sequence as `BAD_PASSES` describes it, and a check that nothing about it has changed."""
    executor = executors["gemma3"]
    prefix = random_tokens(6)
    sequence = prefilled(executor, prefix, capacity=12)
    executor.forward([Segment(sequence, [3, 4, 5], [-1, 0, 0])])
    keys, values = executor._caches[sequence].keys.clone(), executor._caches[sequence].values.clone()

    def check_unchanged():
        assert executor.length(sequence) == 6
        assert torch.equal(executor._caches[sequence].keys, keys)
        assert torch.equal(executor._caches[sequence].values, values)
        below = executor.forward([Segment(sequence, [6], [2], first_node=3)]).logits
        assert_close(below, chain_logits(executor, [*prefix, 3, 5, 6])[-1:])
        executor.keep(sequence, [0, 2, 3])
        assert executor.length(sequence) == 9
        assert_close(
            executor.forward([Segment(sequence, [7])]).logits, chain_logits(executor, [*prefix, 3, 5, 6, 7])[-1:]
        )

    return executor, sequence, check_unchanged


@pytest.mark.parametrize("name", BAD_PASSES)
def test_refused_pass_changes_nothing(sequence_with_nodes, name):
    executor, sequence, check_unchanged = sequence_with_nodes
    make, error, message = BAD_PASSES[name]
    segments, options = make(sequence)
    with pytest.raises(error, match=message):
        executor.forward(segments, **options)
    check_unchanged()


@pytest.mark.parametrize("name", BAD_CALLS)
def test_refused_call_changes_nothing(sequence_with_nodes, name):
    executor, sequence, check_unchanged = sequence_with_nodes
    call, message = BAD_CALLS[name]
    with pytest.raises(RowsError, match=message):
        call(executor, sequence)
    check_unchanged()


def test_refused_segment_leaves_the_others_of_its_pass_unchanged(sequence_with_nodes):
    executor, sequence, check_unchanged = sequence_with_nodes
    other = prefilled(executor, [1, 2], capacity=4)
    with pytest.raises(CacheFullError, match=f"sequence {other}"):
        executor.forward([Segment(sequence, [8, 9]), Segment(other, [1, 2, 3])])
    check_unchanged()


def test_closed_sequence_is_refused_and_its_number_not_mixed_up(executors):
    executor = executors["llama"]
    sequence = prefilled(executor, random_tokens(3))
    executor.close(sequence)
    for call in (executor.length, executor.close, lambda number: executor.forward([Segment(number, [1])])):
        with pytest.raises(RowsError, match=f"sequence {sequence} is not open"):
            call(sequence)
    assert executor.length(executor.open(4)) == 0


def test_a_cache_that_cannot_be_allocated_is_refused(executors):
    executor = executors["llama"]
    sequence = prefilled(executor, random_tokens(3), capacity=10**15)
    cache = executor._caches[sequence]
    with pytest.raises(CacheFullError, match="no memory for a key-value cache of 1000000000000000 positions"):
        cache.reserve(10**15)
    assert cache.keys.shape == cache.values.shape
    executor.close(sequence)


@pytest.mark.parametrize("case", FAMILIES)
def test_float32_equals_float64_but_for_rounding(executors, case):
    tokens = random_tokens(20)
    assert_close(chain_logits(tiny_executor(case), tokens), chain_logits(executors[case], tokens), 1e-4)


def test_executor_is_not_exact_and_keeps_its_configuration(executors):
    executor = executors["llama"]
    assert executor.exact is False
    assert executor.config == tiny_config("llama")


def test_outputs_are_float32_and_untracked_in_any_dtype():
    executor = TorchExecutor(tiny_config("gemma3"), tiny_weights("gemma3"), dtype=torch.bfloat16)
    sequence = executor.open(12)
    output = executor.forward([Segment(sequence, random_tokens(12))], capture=[0, 4])
    assert {output.logits.dtype, output.hidden[0].dtype, output.hidden[4].dtype} == {torch.float32}
    assert not output.logits.requires_grad
    assert executor._caches[sequence].keys.dtype == torch.bfloat16
    reference = chain_logits(tiny_executor("gemma3"), random_tokens(12))
    assert (output.logits - reference).abs().max() > 1e-3  # really in 16 bits
    assert (output.logits - reference).abs().mean() < 0.2 * reference.std()


def test_decoder_stays_trainable_next_to_the_executor():
    executor = tiny_executor("llama")
    chain_logits(executor, random_tokens(4))
    weight = executor.decoder.model.norm.weight
    (weight * 2.0).sum().backward()
    assert torch.equal(weight.grad, torch.full_like(weight, 2.0))


def test_executor_works_from_another_thread(executors):
    """Inference mode is a property of the thread; each call must switch it on for itself."""
    executor = executors["llama"]
    tokens = random_tokens(6)
    sequence = prefilled(executor, tokens[:4])
    results = []

    def go_on():
        results.append(executor.forward([Segment(sequence, tokens[4:])]).logits)
        executor.keep(sequence, [0, 1])

    thread = threading.Thread(target=go_on)
    thread.start()
    thread.join()
    assert_close(results[0], chain_logits(executor, tokens)[4:])
    assert executor.length(sequence) == 6


@st.composite
def trees(draw):
    """Parents, a split of the nodes into passes, and a node whose path to keep (-1 keeps nothing)."""
    count = draw(st.integers(1, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    cuts = draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    return parents, [0, *sorted(cuts), count], draw(st.integers(-1, count - 1))


@settings(max_examples=100, deadline=None)
@given(
    case=st.sampled_from(FAMILIES),
    prefix_cuts=st.lists(st.integers(1, 6), max_size=4),
    rounds=st.lists(trees(), min_size=1, max_size=3),
    dropped=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_trees_in_any_chunks_equal_fresh_chains(executors, case, prefix_cuts, rounds, dropped, seed):
    executor = executors[case]
    tokens = iter(random_tokens(200, seed=seed))
    sequence, committed = executor.open(60), []
    for size in prefix_cuts:
        chunk = [next(tokens) for _ in range(size)]
        executor.forward([Segment(sequence, chunk)])
        executor.keep(sequence, range(size))
        committed += chunk
    for parents, cuts, last in rounds:
        drafted = [next(tokens) for _ in parents]
        logits = torch.cat(
            [
                executor.forward([Segment(sequence, drafted[start:stop], parents[start:stop], first_node=start)]).logits
                for start, stop in itertools.pairwise(cuts)
            ]
        )
        for leaf in set(range(len(parents))) - set(parents):
            path = path_to(parents, leaf)
            expected = chain_logits(executor, committed + [drafted[node] for node in path])
            assert_close(logits[path], expected[len(committed) :])
        path = path_to(parents, last)
        executor.keep(sequence, path)
        committed += [drafted[node] for node in path]
        assert executor.length(sequence) == len(committed)
    committed = committed[: max(len(committed) - dropped, 0)]
    executor.truncate(sequence, len(committed))
    token = next(tokens)
    logits = executor.forward([Segment(sequence, [token])]).logits
    assert_close(logits, chain_logits(executor, [*committed, token])[-1:])
    executor.close(sequence)


def test_window_of_one_sees_only_itself():
    """The smallest window: every row's logits are those of its token alone, wherever it stands."""
    config = tiny_config("mistral-window")
    layers = tuple(dataclasses.replace(layer, sliding_window=1) for layer in config.layers)
    executor = TorchExecutor(dataclasses.replace(config, layers=layers), tiny_weights("mistral-window"))
    tokens = random_tokens(6)
    logits = chain_logits(executor, tokens)
    for row, token in enumerate(tokens):
        assert_close(logits[row], chain_logits(executor, [token])[0])
