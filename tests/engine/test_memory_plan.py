"""The plan of the caches' memory: what it counts, what it refuses, and how it is written."""

import pytest

from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.engine.draft_policy import DraftPolicy
from pilotfish.engine.memory_plan import apply_plan, parse_bytes, plan_memory
from pilotfish.engine.pass_time import PassTime
from pilotfish.errors import CacheFullError, InvalidInputError
from tests.engine.tiny import ScriptedDrafter, tiny_target

PAGE_BYTES = 32 * 2 * 2 * 2 * 16 * 4
"""32 positions, keys and values, of two layers and two heads of 16 float32 numbers."""


@pytest.mark.parametrize(
    ("text", "value"),
    [(5, 5), ("5", 5), ("2GiB", 2 * 2**30), ("1.5 MB", 1_500_000), ("3k", 3000), ("4 kib", 4096), ("7B", 7)],
)
def test_amounts_are_understood_with_their_units(text, value):
    assert parse_bytes(text, "kv_cache_memory") == value


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", 0, -5, True, "2 gallons", "1e9", "nan"])
def test_other_amounts_are_refused(text):
    with pytest.raises(InvalidInputError, match="kv_cache_memory="):
        parse_bytes(text, "kv_cache_memory")


def plan(target, drafter=None, draft_len=0, memory=None, longest=96):
    return plan_memory(target, drafter, draft_len, kv_cache_memory=memory, max_model_len=longest)


def test_memory_becomes_pages_of_target_and_drafters_alike():
    target, draft = tiny_target(), tiny_target(layers=1)
    assert target.page_bytes == PAGE_BYTES
    assert plan(target, memory=10 * PAGE_BYTES).pages == 10
    policy = DraftPolicy([DraftModelDrafter(draft)], PassTime({1: 1.0}))
    for drafter in (DraftModelDrafter(draft), policy):
        both = plan(target, drafter, 4, memory=15 * PAGE_BYTES)
        assert (both.pages, both.page_bytes) == (10, PAGE_BYTES * 3 // 2)
        apply_plan(both, target, drafter)
        assert target.total_pages == draft.total_pages == 10


def test_what_a_drafter_keeps_per_token_is_counted():
    drafter = ScriptedDrafter(lambda tokens, draft_len: None)
    drafter.bytes_per_token = PAGE_BYTES // 32
    assert plan(tiny_target(), drafter, 1, memory=20 * PAGE_BYTES).pages == 10


def test_rows_of_a_round_are_counted_beside_the_longest_request():
    target = tiny_target()
    assert plan(target, memory=4 * PAGE_BYTES).pages == 4
    drafter = ScriptedDrafter(lambda tokens, draft_len: None)  # two nodes per depth
    for draft_len, pages in ((15, 4), (16, 5)):
        with pytest.raises(CacheFullError):
            plan(target, drafter, draft_len, memory=(pages - 1) * PAGE_BYTES)
        assert plan(target, drafter, draft_len, memory=pages * PAGE_BYTES).pages == pages


def test_too_little_is_refused_with_the_numbers():
    with pytest.raises(CacheFullError, match=r"kv_cache_memory is .* one request of 96 tokens needs .* KiB per token"):
        plan(tiny_target(), memory=PAGE_BYTES)
    assert plan(tiny_target(), memory=PAGE_BYTES, longest=31).pages == 1


def test_default_is_a_share_of_what_is_free(monkeypatch):
    for free, pages in ((1000, 32), (40, 20), (6, 4)):
        monkeypatch.setattr("pilotfish.engine.memory_plan.free_memory", lambda device, free=free: free * PAGE_BYTES)
        assert plan(tiny_target()).pages == pages
    monkeypatch.setattr("pilotfish.engine.memory_plan.free_memory", lambda device: 3 * PAGE_BYTES)
    with pytest.raises(CacheFullError, match="the free memory is"):
        plan(tiny_target())
