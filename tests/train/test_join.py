"""Joining data sets: what a reader finds, what is counted, what is refused."""

import errno
import os

import pytest
import torch

from pilotfish.errors import DataSetError, InvalidInputError
from pilotfish.train.dataset import DataSet
from pilotfish.train.join import join_data
from pilotfish.train.manifest import MANIFEST
from tests.train.talking import make, talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return talking_model(tmp_path_factory.mktemp("target"))


@pytest.fixture
def parts(model, tmp_path):
    for seed in range(2):
        make(model, tmp_path / f"d{seed}", goal=80, seed=seed)
    return [tmp_path / "d0", tmp_path / "d1"]


def contents(data, split):
    return [(each.tokens.tolist(), each.temperature, each.hidden[1]) for each in data.conversations(split, (1,))]


@pytest.mark.parametrize("linked", [True, False])
def test_joined_set_has_the_conversations_of_its_parts_in_order(parts, tmp_path, monkeypatch, linked):
    if not linked:

        def refuse(*names):
            raise OSError(errno.EXDEV, "another disk")

        monkeypatch.setattr(os, "link", refuse)
    manifest = join_data(tmp_path / "whole", parts, {"command": "join"})
    whole = DataSet(tmp_path / "whole")
    for split in ("train", "held_out"):
        apart = [each for part in parts for each in contents(DataSet(part), split)]
        joined = contents(whole, split)
        assert [each[:2] for each in joined] == [each[:2] for each in apart]
        assert all(torch.equal(one[2], other[2]) for one, other in zip(joined, apart, strict=True))
    assert joined, "some prompts are held out"
    assert manifest.totals.answer_tokens == sum(DataSet(part).manifest.totals.answer_tokens for part in parts)
    assert [part["directory"] for part in whole.manifest.origin["joined"]] == ["d0", "d1"]
    assert whole.manifest.origin["command"] == "join"


def test_prompts_of_both_sets_count_once(model, parts, tmp_path):
    make(model, tmp_path / "again", goal=80, seed=0, max_answer_tokens=9)
    first, again = (DataSet(path).manifest.totals for path in (parts[0], tmp_path / "again"))
    both = join_data(tmp_path / "whole", [parts[0], tmp_path / "again"]).totals
    assert both.new_prompts == max(first.new_prompts, again.new_prompts)
    assert both.conversations == first.conversations + again.conversations


def test_joined_set_does_not_grow(model, parts, tmp_path):
    join_data(tmp_path / "whole", parts)
    before = (tmp_path / "whole" / MANIFEST).read_bytes()
    with pytest.raises(DataSetError, match="add to one of d0, d1"):
        make(model, tmp_path / "whole", goal=10_000)
    assert (tmp_path / "whole" / MANIFEST).read_bytes() == before


def test_refusals(model, parts, tmp_path):
    def refused(error, match, *sources, output="out"):
        with pytest.raises(error, match=match):
            join_data(tmp_path / output, sources)
        assert not (tmp_path / output / MANIFEST).exists()

    make(model, tmp_path / "ids", goal=20, boundaries=())
    make(model, tmp_path / "share", goal=20, held_out_share=0.9)
    make(talking_model(tmp_path / "other", seed=5), tmp_path / "others", goal=20)
    refused(DataSetError, "ids: boundaries is", parts[0], tmp_path / "ids")
    refused(DataSetError, "share: held_out_share is", parts[0], tmp_path / "share")
    refused(DataSetError, "others", parts[0], tmp_path / "others")
    refused(DataSetError, "no data set", parts[0], tmp_path / "nothing")
    refused(InvalidInputError, "two or more", parts[0])
    refused(InvalidInputError, "each of them once", parts[0], parts[0])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused(InvalidInputError, "is there already", *parts, output="full")
