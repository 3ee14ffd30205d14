"""Shared beginnings: whatever is admitted, evicted or cut, every row equals its recomputation, and no page is lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.errors import CacheFullError, RowsError
from pilotfish.models.base import Segment
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.torch_executor import TorchExecutor
from tests.engine.tiny import VOCAB, tiny_config
from tests.models.memory_weights import random_weights

KINDS = {"native": NativeExecutor, "torch": TorchExecutor}
PAGE = 32
CONFIG = tiny_config(context_length=1024)
TEXTS = [[(start * 7 + place * (start + 3)) % VOCAB for place in range(200)] for start in range(3)]
"""Texts that begin differently; each is also continued in two ways."""


def executor(kind, pages=64):
    options = {"threads": 1} if kind == "native" else {}
    return KINDS[kind](CONFIG, random_weights(CONFIG), kv_cache_tokens=pages * PAGE, **options)


def read(run, sequence, tokens):
    """Runs and commits what is missing of a text, and gives the last row's logits."""
    rest = tokens[run.length(sequence) :]
    output = run.forward([Segment(sequence, rest, logits_from=len(rest) - 1)])
    run.keep(sequence, range(len(rest)))
    return output.logits[0]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def alone():
    """Logits after a text, computed by itself on an executor of its own."""
    runs, known = {}, {}

    def logits(kind, tokens):
        key = (kind, tuple(tokens))
        if key not in known:
            run = runs.setdefault(kind, executor(kind))
            sequence = run.open(len(tokens))
            known[key] = read(run, sequence, tokens)
            run.close(sequence)
        return known[key]

    return logits


def same(kind, seen, expected):
    return torch.equal(seen, expected) if kind == "native" else torch.allclose(seen, expected, atol=1e-5)


def test_texts_that_begin_alike_share_full_pages(kind, alone):
    run = executor(kind)
    prefix = run.prefix_cache
    first = run.open(200)
    tokens = TEXTS[0][:100]
    read(run, first, tokens)
    prefix.publish(first, tokens)
    for ending, hit in (([1, 2], 96), ([], 96)):
        text = [*tokens, *ending]
        sequence = run.open(200)
        assert prefix.attach(sequence, text, len(text) - 1) == {}
        assert run.length(sequence) == hit
        assert same(kind, read(run, sequence, text), alone(kind, text))
        prefix.close(sequence, text)
    other = run.open(200)
    prefix.attach(other, [5, *tokens], 100)
    assert run.length(other) == 0, "the same tokens after another beginning are another text"
    prefix.close(other, [])
    prefix.close(first, tokens)
    assert prefix.available_pages == run.total_pages
    assert (prefix.queried_tokens, prefix.hit_tokens) == (102 + 100 + 101, 192)
    prefix.clear()
    assert run.free_pages == run.total_pages


def test_sequences_that_share_pages_take_them_once_where_nothing_is_copied():
    run = executor("native")
    first, second = run.open(200), run.open(200)
    read(run, first, TEXTS[0][:96])
    run.prefix_cache.publish(first, TEXTS[0])
    run.prefix_cache.attach(second, TEXTS[0], 96)
    assert run.total_pages - run.free_pages == 3


def test_cut_into_a_shared_page_leaves_the_others_as_they_are(kind, alone):
    run = executor(kind)
    prefix = run.prefix_cache
    tokens = TEXTS[0][:96]
    first, second = run.open(200), run.open(200)
    read(run, first, tokens)
    prefix.publish(first, tokens)
    prefix.attach(second, tokens, 96)
    run.truncate(second, 70)
    changed = [*tokens[:70], *range(20)]
    assert same(kind, read(run, second, changed), alone(kind, changed))
    assert same(kind, read(run, first, [*tokens, 9]), alone(kind, [*tokens, 9]))
    third = run.open(200)
    prefix.attach(third, tokens, 96)
    assert same(kind, read(run, third, [*tokens, 8]), alone(kind, [*tokens, 8]))


def test_rows_that_did_not_pass_all_layers_are_not_shared(kind):
    run = executor(kind)
    sequence = run.open(64)
    run.forward([Segment(sequence, TEXTS[0][:32], logits_from=32)], layers=(0, 1))
    run.keep(sequence, range(32))
    with pytest.raises(RowsError, match="1 layers only"):
        run.share(sequence, 0)
    with pytest.raises(RowsError, match="not full"):
        run.share(sequence, 1)


def test_misuse_of_pages_is_refused_and_changes_nothing(kind):
    run = executor(kind, pages=8)
    first, second = run.open(64), run.open(100)
    read(run, first, TEXTS[0][:33])
    page = run.share(first, 0)
    for call in (
        lambda: run.adopt(second, [page + 7]),
        lambda: run.adopt(first, [page]),
        lambda: run.release(page + 7),
        lambda: run.release(-1),
        lambda: run.share(first, -1),
    ):
        with pytest.raises(RowsError):
            call()
    with pytest.raises(CacheFullError):
        run.adopt(second, [page] * 4)
    assert run.length(second) == 0
    with pytest.raises(CacheFullError, match="cannot be limited to 1 pages"):
        run.limit_pages(1)
    run.release(page)
    run.close(first)
    with pytest.raises(RowsError):
        run.release(page)


def test_pass_without_free_pages_is_refused_and_changes_nothing(kind, alone):
    run = executor(kind, pages=4)
    first, second = run.open(96), run.open(96)
    read(run, first, TEXTS[0][:64])
    with pytest.raises(CacheFullError, match="pages"):
        run.forward([Segment(second, TEXTS[1][:65])])
    with pytest.raises(CacheFullError, match="pages"):
        run.forward([Segment(first, [1]), Segment(second, TEXTS[1][:33])])
    assert same(kind, read(run, second, TEXTS[1][:64]), alone(kind, TEXTS[1][:64]))
    run.truncate(second, 32)
    assert same(kind, read(run, first, TEXTS[0][:65]), alone(kind, TEXTS[0][:65]))
    assert run.free_pages == 0


def test_the_longest_unused_goes_first_and_of_a_text_its_end():
    run = executor("native", pages=6)
    prefix = run.prefix_cache
    for text in (TEXTS[0][:96], TEXTS[1][:96]):
        sequence = run.open(96)
        read(run, sequence, text)
        prefix.close(sequence, text)
    assert run.free_pages == 0
    assert prefix.provide(2)
    assert prefix.idle_hits(TEXTS[0], 96) == (1, 1)
    assert prefix.idle_hits(TEXTS[1], 96) == (3, 3)
    assert not prefix.provide(7)


def test_copies_find_room_among_what_is_kept_for_longer(alone):
    run = executor("torch", pages=8)
    prefix = run.prefix_cache
    for text in (TEXTS[0][:96], TEXTS[1][:96]):
        sequence = run.open(100)
        read(run, sequence, text)
        prefix.close(sequence, text)
    text = [*TEXTS[1][:96], 4]
    sequence = run.open(100)
    prefix.attach(sequence, text, 96)
    assert run.length(sequence) == 96
    assert prefix.provide(1)
    assert same("torch", read(run, sequence, text), alone("torch", text))
    prefix.close(sequence, text)
    assert prefix.available_pages == 8


def test_states_come_with_the_pages_they_were_noted_for(kind):
    run = executor(kind)
    prefix = run.prefix_cache
    tokens = TEXTS[0][:100]
    first = run.open(200)
    shown = []
    for start, stop in ((0, 20), (20, 50), (50, 51), (51, 100)):
        rows = run.forward([Segment(first, tokens[start:stop])], capture=(1, 2)).hidden
        run.keep(first, range(stop - start))
        shown.append(rows)
        if start != 50:  # one position is never shown
            prefix.note(first, start, rows)
        prefix.publish(first, tokens)
    second = run.open(200)
    states = prefix.attach(second, tokens, 99, (1, 2))
    assert run.length(second) == 32, "the page of the missing position has no states, nor has what follows it"
    for boundary in (1, 2):
        assert torch.equal(states[boundary], torch.cat([rows[boundary] for rows in shown])[:32])
    third = run.open(200)
    assert prefix.attach(third, tokens, 99) == {}
    assert run.length(third) == 96


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "read", "read", "close", "cut", "provide", "tree"]), st.integers(0, 1000)),
    min_size=1,
    max_size=24,
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_random_admissions_evictions_and_cuts_equal_recomputation(kind, alone, steps):
    run = executor(kind, pages=16)
    prefix = run.prefix_cache
    opened = []
    for step, number in steps:
        if step == "provide":
            prefix.provide(number % 16)
            continue
        if step == "read" and len(opened) < 4:
            base = TEXTS[number % 3]
            text = [*base[: 30 + number % 90], *range(number % 5)]
            if run.pages_for(len(text)) <= prefix.available_pages:
                sequence = run.open(180)
                prefix.attach(sequence, text, len(text) - 1)
                if prefix.provide(run.pages_for(len(text)) - run.pages_for(run.length(sequence))):
                    assert same(kind, read(run, sequence, text), alone(kind, text))
                    prefix.publish(sequence, text)
                    opened.append((sequence, text))
                else:
                    prefix.close(sequence, text)
            continue
        if not opened:
            continue
        sequence, text = opened.pop(number % len(opened))
        if step == "cut" and prefix.provide(3):
            # A cut sequence is closed afterwards: what was published of it may not be continued.
            cut = [*text[: 1 + number % len(text)], 3]
            run.truncate(sequence, len(cut) - 1)
            assert same(kind, read(run, sequence, cut), alone(kind, cut))
            prefix.close(sequence)
        elif step == "tree" and prefix.provide(2):
            nodes = [5, 6, 7, 8]
            output = run.forward([Segment(sequence, nodes, (-1, -1, 1, 0))])
            run.keep(sequence, [1, 2])
            assert same(kind, output.logits[2], alone(kind, [*text, 6, 7]))
            opened.append((sequence, [*text, 6, 7]))
        else:
            prefix.close(sequence, text)
    for sequence, text in opened:
        prefix.close(sequence, text)
    assert prefix.available_pages == run.total_pages
    prefix.clear()
    assert run.free_pages == run.total_pages, "no page is lost"
