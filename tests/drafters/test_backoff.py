"""Back-off tables: what is found in them, and files that are one target's."""

import json

import numpy as np
import pytest
import torch

from pilotfish.drafters.backoff import (
    TABLE_FILE,
    BackoffTable,
    TableOrder,
    context_hash,
    context_hashes,
    load_table,
    seen_class,
    stored,
)
from pilotfish.drafters.lookup import LookupDrafter
from pilotfish.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from pilotfish.models.writing import write_model
from pilotfish.sampling.params import SamplingParams
from pilotfish.train.pool import save_table
from tests.drafters.common import foretold
from tests.engine.tiny import VOCAB, run, tiny_engine, tiny_target


def table(entries, seen=1):
    """From contexts to lists of (successor, share), each context seen so many times."""
    orders = {}
    for length in {len(context) for context in entries}:
        rows = sorted((context_hash(context), found) for context, found in entries.items() if len(context) == length)
        pairs = [pair for _, found in rows for pair in found]
        starts = np.cumsum([0, *(len(found) for _, found in rows)])
        orders[length] = TableOrder(
            np.int32([key for key, _ in rows]),
            np.int32(starts),
            np.int32([token for token, _ in pairs]),
            np.float32([share for _, share in pairs]),
            seen_class(np.full(len(rows), seen)),
        )
    return BackoffTable(orders)


def test_hashes_of_rows_are_those_of_contexts():
    contexts = np.random.default_rng(0).integers(0, 200_000, size=(50, 3))
    assert context_hashes(contexts).tolist() == [context_hash(row.tolist()) for row in contexts]
    assert len(set(context_hashes(contexts).tolist())) == 50


def test_longest_known_context_says_what_may_follow():
    known = table({(5,): [(6, 0.5), (9, 0.25)], (4, 5): [(7, 0.75)]})
    assert foretold(known, [3, 4, 5]) == ([7], [0.75])
    assert foretold(known, [9, 5]) == ([6, 9], [0.5, 0.25])
    assert foretold(known, [5]) == ([6, 9], [0.5, 0.25])
    assert foretold(known, [9]) is None


def test_classes_of_how_often_a_context_was_seen():
    times = np.array([1, 2, 3, 4, 15, 16, 127, 128, 10**6])
    assert seen_class(times).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_answers_are_the_same_and_drafts_of_the_right_table_are_accepted():
    target = tiny_target()
    params = SamplingParams(temperature=0, max_tokens=20)
    (plain,) = run(tiny_engine(target), [[3, 4, 5]], params)
    text = plain.tokens
    entries = {tuple(text[place - 2 : place]): [(text[place], 0.9)] for place in range(2, len(text))}
    (drafted,) = run(tiny_engine(target, LookupDrafter(table(entries), own_text=False)), [[3, 4, 5]], params)
    assert drafted.tokens == text
    assert drafted.counters.accepted_tokens > 0


@pytest.mark.parametrize("vocab_size", [VOCAB, 60_000, 1 << 17])
def test_file_round_trip_and_refusals(tmp_path, vocab_size):
    largest = min(vocab_size - 1, 50_000)
    saved = table({(5,): [(6, 0.5), (largest, 0.25)], (4, 5): [(7, 0.75)]}, seen=20)
    save_table(saved, tmp_path / "table", fingerprint="abc", vocab_size=vocab_size)
    loaded = load_table(tmp_path / "table", "abc")
    assert foretold(loaded, [4, 5]) == ([7], [pytest.approx(0.75, abs=0.005)])
    assert foretold(loaded, [5]) == ([6, largest], [pytest.approx(0.5, abs=0.005), pytest.approx(0.25, abs=0.005)])
    assert loaded.orders[1].seen.tolist() == [3]
    with pytest.raises(UnsupportedModelError, match="another model's token ids mean nothing"):
        load_table(tmp_path / "table", "abd")
    with pytest.raises(ModelNotFoundError, match="pilotfish train pool"):
        load_table(tmp_path / "nowhere", "abc")
    config = json.loads((tmp_path / "table" / "config.json").read_text())
    (tmp_path / "table" / "config.json").write_text(json.dumps({**config, "format": 1}))
    with pytest.raises(UnsupportedModelError, match="format 1; expected"):
        load_table(tmp_path / "table", "abc")
    (tmp_path / "table" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UnsupportedModelError, match="'llama'"):
        load_table(tmp_path / "table", "abc")


def test_damaged_table_is_refused_by_what_is_wrong(tmp_path):
    good = table({(5,): [(6, 0.5), (7, 0.25)]}).orders[1]
    save_table(BackoffTable({1: good}), tmp_path, fingerprint="abc", vocab_size=VOCAB)
    whole = {name: torch.from_numpy(values) for name, values in stored(good, VOCAB).items()}
    two = {
        "keys": torch.tensor([5, 4], dtype=torch.int32),
        "width": torch.tensor([1, 1], dtype=torch.uint8),
        "seen": torch.zeros(2, dtype=torch.uint8),
    }
    for changes, message in (
        ({"width": torch.tensor([3], dtype=torch.uint8)}, "do not fit"),
        ({"seen": torch.tensor([5], dtype=torch.uint8)}, "do not fit"),
        (two, "do not fit"),
        ({"seen": None}, "'seen.1' is missing; expected a row of U8"),
        ({"keys": whole["keys"].double()}, "'keys.1' is F64"),
        ({"share": torch.tensor([float("nan"), 1.0])}, "'share.1' is F32"),
        ({"share": torch.ones(2, dtype=torch.bfloat16)}, "'share.1' is BF16"),
        ({"next": torch.tensor([1 << 40, 6])}, "'next.1' is I64"),
        ({"keys": torch.zeros(1, 3, dtype=torch.int32)}, r"'keys.1' is I32 of shape \[1, 3\]"),
        ({"extra": torch.zeros(1)}, "'extra.1' has no place"),
    ):
        changed = {**whole, **changes}
        tensors = {f"{each}.1": tensor for each, tensor in changed.items() if tensor is not None}
        write_model(tmp_path, json.loads((tmp_path / "config.json").read_text()), tensors, file=TABLE_FILE)
        with pytest.raises(CorruptModelError, match=message):
            load_table(tmp_path, "abc")
