"""Back-off tables: the longest known context decides, and files are one target's."""

import json

import numpy as np
import pytest

from pilotfish.drafters.backoff import BackoffDrafter, BackoffTable, context_hash, context_hashes, load_table
from pilotfish.errors import ModelNotFoundError, UnsupportedModelError
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT
from pilotfish.train.pool import save_table
from tests.drafters.common import propose
from tests.engine.tiny import VOCAB, run, tiny_engine, tiny_target

SAMPLER = Sampler(SamplingParams(temperature=0, seed=0), VOCAB)


def table(entries):
    """From contexts to (successor, share)."""
    orders = {}
    for length in {len(context) for context in entries}:
        rows = sorted((context_hash(context), *found) for context, found in entries.items() if len(context) == length)
        keys, successors, shares = zip(*rows, strict=True)
        orders[length] = (np.int32(keys), np.int32(successors), np.float32(shares))
    return BackoffTable(orders)


def test_hashes_of_rows_are_those_of_contexts():
    contexts = np.random.default_rng(0).integers(0, 200_000, size=(50, 3))
    assert context_hashes(contexts).tolist() == [context_hash(row.tolist()) for row in contexts]
    assert len(set(context_hashes(contexts).tolist())) == 50


def test_longest_known_context_decides_with_its_share():
    drafter = BackoffDrafter(table({(5,): (6, 0.5), (4, 5): (7, 0.75), (7,): (8, 0.25), (6,): (1, 1.0)}))
    draft = propose(drafter, [3, 4, 5], 4, SAMPLER)
    assert draft.tokens == (7, 8), "then no context is known"
    assert draft.confidence == (0.75, 0.25)
    assert propose(drafter, [9, 5], 2, SAMPLER).tokens == (6, 1)
    assert propose(drafter, [9, 9], 2, SAMPLER) == EMPTY_DRAFT
    assert propose(BackoffDrafter(BackoffTable({})), [1, 2], 2, SAMPLER) == EMPTY_DRAFT


def test_tokens_that_the_tokenizer_does_not_know_are_not_drafted():
    assert propose(BackoffDrafter(table({(5,): (VOCAB, 1.0)})), [5], 2, SAMPLER) == EMPTY_DRAFT


def test_answers_are_the_same_and_drafts_of_the_right_table_are_accepted():
    target = tiny_target()
    params = SamplingParams(temperature=0, max_tokens=20)
    (plain,) = run(tiny_engine(target), [[3, 4, 5]], params)
    text = plain.tokens
    entries = {tuple(text[place - 2 : place]): (text[place], 0.9) for place in range(2, len(text))}
    (drafted,) = run(tiny_engine(target, BackoffDrafter(table(entries))), [[3, 4, 5]], params)
    assert drafted.tokens == text
    assert drafted.counters.accepted_tokens > 0


def test_file_round_trip_and_refusals(tmp_path):
    saved = table({(5,): (6, 0.5), (4, 5): (7, 0.75)})
    save_table(saved, tmp_path / "table", fingerprint="abc", vocab_size=VOCAB)
    loaded = load_table(tmp_path / "table", "abc")
    assert loaded.successor([4, 5]) == (7, 0.75)
    assert loaded.successor([5]) == (6, 0.5)
    with pytest.raises(UnsupportedModelError, match="another model's token ids mean nothing"):
        load_table(tmp_path / "table", "abd")
    with pytest.raises(ModelNotFoundError, match="pilotfish train pool"):
        load_table(tmp_path / "nowhere", "abc")
    (tmp_path / "table" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UnsupportedModelError, match="'llama'"):
        load_table(tmp_path / "table", "abc")
