"""Reading a data set: the split, checksums, hidden states that are stored or computed, refusals."""

import pytest
import torch

from pilotfish.errors import DataSetError
from pilotfish.models.base import Segment
from pilotfish.train.dataset import DataSet, held_out_mask
from pilotfish.train.hidden import compute_states
from tests.train.talking import LAYERS, make, talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return talking_model(tmp_path_factory.mktemp("target"))


@pytest.fixture
def made(model, tmp_path):
    make(model, tmp_path / "d", goal=80)
    return tmp_path / "d"


def test_split_is_by_the_prompts_hash_alone():
    hashes = torch.tensor([0, 2**62, -(2**63), -1, 2**63 - 1], dtype=torch.int64)
    assert held_out_mask(hashes, 0.0) == [False] * 5
    assert held_out_mask(hashes, 0.3) == [True, True, False, False, False]
    assert held_out_mask(hashes, 0.6) == [True, True, True, False, True]
    assert held_out_mask(hashes, 1.0 + 1e-9) == [True] * 5


def test_splits_part_the_conversations_and_are_the_same_in_another_set(model, made, tmp_path):
    make(model, tmp_path / "twin", goal=80, batch=4)
    numbers = []
    for directory in (made, tmp_path / "twin"):
        data = DataSet(directory)
        numbers.append({split: [each.number for each in data.conversations(split)] for split in ("train", "held_out")})
    shared = min(max(split["train"]) for split in numbers)
    for split in ("train", "held_out"):
        first, second = ([number for number in each[split] if number <= shared] for each in numbers)
        assert first == second == sorted(first)
        assert first
    assert not set(numbers[0]["train"]) & set(numbers[0]["held_out"])


def test_place_tells_lengths_without_reading(made):
    data = DataSet(made)
    for place in data.places("train"):
        each = data.read(place)
        assert (place.tokens, place.answer_tokens) == (len(each.tokens), int(each.loss_mask.sum()))
        assert each.hidden == {}


def test_states_not_stored_are_computed_by_the_target(model, made, tmp_path):
    make(model, tmp_path / "ids", goal=80, boundaries=())
    stored, ids = DataSet(made, executor=model.executor), DataSet(tmp_path / "ids", executor=model.executor)
    pairs = list(zip(stored.places("train"), ids.places("train"), strict=True))
    for place, twin in pairs:
        kept, computed = stored.read(place, (LAYERS, 1, 2)), ids.read(twin, (LAYERS, 1, 2))
        assert list(kept.hidden) == [LAYERS, 1, 2] or sorted(kept.hidden) == [1, 2, LAYERS]
        for boundary in (1, 2, LAYERS):
            assert torch.equal(kept.hidden[boundary], computed.hidden[boundary])
        reference = compute_states(model.executor, kept.tokens.tolist(), (2,))
        assert torch.equal(kept.hidden[2], reference[2])
    size = sum(shard.size for shard in stored.manifest.shards)
    assert sum(shard.size for shard in ids.manifest.shards) < size / 3


def test_states_are_computed_where_texts_of_others_fill_the_cache(model, made, tmp_path):
    make(model, tmp_path / "ids", goal=80, boundaries=())
    data, executor = DataSet(tmp_path / "ids", executor=model.executor), model.executor
    place = max(data.places("train"), key=lambda each: each.tokens)
    expected = data.read(place, (1,)).hidden[1]
    cache, pages = executor.prefix_cache, executor.total_pages
    tokens = [token % 200 for token in range(64)]
    sequence = executor.open(len(tokens))
    executor.forward([Segment(sequence, tokens, logits_from=len(tokens))])
    executor.keep(sequence, range(len(tokens)))
    cache.close(sequence, tokens)
    executor.limit_pages(executor.total_pages - executor.free_pages)
    try:
        assert torch.equal(data.read(place, (1,)).hidden[1], expected)
    finally:
        executor.limit_pages(pages)


def test_missing_boundaries_and_other_models_are_named(model, made, tmp_path):
    data = DataSet(made)
    place = data.places("train")[0]
    with pytest.raises(DataSetError, match=r"no hidden states of boundaries \[2\]; stored: \[1, 3\]: give the target"):
        data.read(place, (1, 2))
    with pytest.raises(DataSetError, match=r"boundaries \[4\]: the model has 3 layers"):
        data.read(place, (4,))
    with pytest.raises(DataSetError, match="a drafter learns from its own target's text"):
        DataSet(made, fingerprint="0" * 64)
    with pytest.raises(DataSetError, match="computes something else"):
        DataSet(made, executor=talking_model(tmp_path / "other", seed=1).executor)
    with pytest.raises(DataSetError, match="is no data set"):
        DataSet(tmp_path)


def test_damaged_or_missing_shard_is_named(made):
    path = made / "shard-00000.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataSetError, match=r"shard-00000.safetensors: sha256 .*, expected"):
        DataSet(made).places("train")
    path.write_bytes(content[:-1])
    with pytest.raises(DataSetError, match=r"shard-00000.safetensors: \d+ bytes, expected \d+"):
        DataSet(made).places("train")
    path.unlink()
    with pytest.raises(DataSetError, match=r"shard-00000\.safetensors is missing"):
        DataSet(made).places("train")
