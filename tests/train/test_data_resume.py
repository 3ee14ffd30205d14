"""A generator that is killed, runs out of disk, or is asked for something else than what was begun."""

import errno
import json
import os
import random
import shutil
import signal
import time
from collections import namedtuple
from dataclasses import replace

import pytest

from pilotfish.errors import DataSetError
from pilotfish.train.data import make_data
from pilotfish.train.dataset import DataSet
from pilotfish.train.manifest import read_manifest
from pilotfish.train.prompts import prompts_checksum
from tests.train.talking import files, make, settings, talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return talking_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The files of an uninterrupted run."""
    path = tmp_path_factory.mktemp("data")
    make(model, path)
    return files(path)


def in_child(action):
    """Runs an action in a child process; returns its pid."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return child


def ended_by(child):
    """The signal that ended a child, 0 if none did."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_data_killed_at_random_moments_equal_an_uninterrupted_runs(model, whole, tmp_path):
    moments = random.Random(0)
    killed = 0
    for _ in range(7):
        child = in_child(lambda: make(model, tmp_path / "d"))
        time.sleep(moments.uniform(0.0, 0.4))
        os.kill(child, signal.SIGKILL)
        if ended_by(child) == 0:
            break
        killed += 1
    make(model, tmp_path / "d")
    assert files(tmp_path / "d") == whole
    assert killed >= 3


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("before", [True, False])
def test_data_killed_around_each_step_of_writing_equal_an_uninterrupted_runs(model, whole, tmp_path, step, before):
    """Each child dies at its third such step: the first shards' manifest, half a shard, a shard without manifest ..."""
    original = getattr(os, step)

    def dying(*arguments, **options):
        dying.left -= 1
        if dying.left == 0 and before:
            os.kill(os.getpid(), signal.SIGKILL)
        original(*arguments, **options)
        if dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(steps):
        dying.left = steps
        setattr(os, step, dying)
        make(model, tmp_path / "d")

    for steps in (1, 2, 3, 4):
        assert ended_by(in_child(lambda steps=steps: run(steps))) == -signal.SIGKILL
    make(model, tmp_path / "d")
    assert files(tmp_path / "d") == whole


def test_set_grows_by_a_larger_goal_and_keeps_its_shards_and_split(model, tmp_path):
    make(model, tmp_path / "d", goal=100)
    small, data = files(tmp_path / "d"), DataSet(tmp_path / "d")
    places = {split: list(data.places(split)) for split in ("train", "held_out")}
    make(model, tmp_path / "d", goal=250)
    large = files(tmp_path / "d")
    assert {name: large[name] for name in small if name != "manifest.json"} == {
        name: content for name, content in small.items() if name != "manifest.json"
    }
    grown = DataSet(tmp_path / "d")
    assert len(grown.manifest.shards) > len(data.manifest.shards)
    for split, before in places.items():
        assert list(grown.places(split))[: len(before)] == before
        assert len(grown.places(split)) > len(before) > 0
    make(model, tmp_path / "d", goal=100)
    assert files(tmp_path / "d") == large, "there is enough already"


@pytest.mark.parametrize(("left", "file"), [(8, "manifest.json"), (10, "shard-00002.safetensors")])
def test_full_disk_stops_cleanly_and_keeps_finished_shards(model, whole, tmp_path, monkeypatch, left, file):
    original = os.fsync  # two of each file: its own and its directory's

    def full(descriptor):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataSetError, match=rf"no space left for .*{file}.*what was finished is kept; make room"):
            make(model, tmp_path / "d")
    kept = files(tmp_path / "d")
    assert sorted(kept) == ["manifest.json", "shard-00000.safetensors", "shard-00001.safetensors"]
    assert len(list(DataSet(tmp_path / "d").conversations("train", (1,)))) > 0
    make(model, tmp_path / "d")
    assert files(tmp_path / "d") == whole


def test_disk_too_small_is_refused_before_anything_is_made(model, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 2**28 + 10**8))
    with pytest.raises(DataSetError, match=r"about .* GB are still to be written and 0.4 GB are free: choose fewer"):
        make(model, tmp_path / "d", goal=3_000_000)
    assert not list((tmp_path / "d").glob("shard*"))
    make(model, tmp_path / "d", goal=30)


def test_few_prompts_need_little_disk_whatever_the_goal(model, tmp_path):
    prompts = [("the shark",), ("a whale swims",)]
    own = settings(invent=False, prompts=prompts_checksum(prompts))
    made = make_data(model, own, tmp_path / "d", 1 << 40, weights="float32", prompts=prompts)
    assert made.totals.conversations == 2


def test_set_of_other_settings_or_another_model_is_refused_by_name(model, tmp_path):
    make(model, tmp_path / "d", goal=30)
    before = files(tmp_path / "d")
    with pytest.raises(DataSetError, match="begun with other settings: seed is 0 there and 7 here"):
        make(model, tmp_path / "d", seed=7)
    with pytest.raises(DataSetError, match=r"boundaries is \(1, 3\) there and \(1, 2\) here"):
        make(model, tmp_path / "d", boundaries=(1, 2))
    prompts = [("the shark",)]
    with pytest.raises(DataSetError, match="prompts is None there"):
        make_data(
            model, settings(prompts=prompts_checksum(prompts)), tmp_path / "d", 9, weights="float32", prompts=prompts
        )
    with pytest.raises(DataSetError, match="whose weights is float32"):
        make_data(model, settings(), tmp_path / "d", 9, weights="int8")
    other = talking_model(tmp_path / "other", seed=1)
    assert other.files.fingerprint == model.files.fingerprint, "the names and sizes of the files are the same"
    with pytest.raises(DataSetError, match="computes something else"):
        make(other, tmp_path / "d")
    renamed = replace(model, files=replace(model.files, fingerprint="0" * 64))
    with pytest.raises(DataSetError, match="whose fingerprint is"):
        make(renamed, tmp_path / "d")
    assert files(tmp_path / "d") == before


def test_second_writer_is_refused(model, tmp_path):
    (tmp_path / "d").mkdir()
    from pilotfish.train.disk import locked

    with locked(tmp_path / "d"), pytest.raises(DataSetError, match="being written by another process"):
        make(model, tmp_path / "d")


def test_damaged_manifest_is_named(model, tmp_path):
    make(model, tmp_path / "d", goal=30)
    path = tmp_path / "d" / "manifest.json"
    values = json.loads(path.read_text())
    for change, message in (
        ({"format": 99}, "format 99, expected 1"),
        ({"shards": [{"file": "x"}]}, "is damaged"),
        ({"settings": {**values["settings"], "mystery": 1}}, "is damaged"),
    ):
        path.write_text(json.dumps({**values, **change}))
        with pytest.raises(DataSetError, match=message):
            make(model, tmp_path / "d")
    path.write_text("{")
    with pytest.raises(DataSetError, match="cannot be read"):
        read_manifest(tmp_path / "d")
