"""The pool of past outputs: bounded, kept in a file, and refused where the file is not what it should be."""

import pytest

from pilotfish.drafters.suffix_pool import MAGIC, SuffixPool
from pilotfish.errors import CorruptPoolError, SpeculativeConfigError


def follows(pool, context):
    return pool.index.propose(context, 1, 1, 1.0, 0.1, False)[0]


def test_pool_keeps_the_latest_outputs_within_its_size():
    pool = SuffixPool("p", 20)
    for number in range(50):
        pool.add([1000 + number, 2000 + number, 7])
        assert len(pool) <= 20
    assert follows(pool, [1049]) == [2049]
    assert follows(pool, [1000]) == []
    pool.add(list(range(100)))
    assert len(pool) == 20
    assert follows(pool, [98]) == [99]
    assert follows(pool, [79]) == []


def test_outputs_do_not_run_into_each_other():
    pool = SuffixPool("p")
    pool.add([1, 2])
    pool.add([3, 4])
    assert follows(pool, [2]) == []
    assert follows(pool, [1, 2]) == []


def test_pool_survives_a_restart(tmp_path):
    path = tmp_path / "pools" / "p"
    pool = SuffixPool("p", 100, path=path, fingerprint="model")
    pool.add([1, 2, 70_000])
    pool.add([4, 5])
    again = SuffixPool("p", 100, path=path, fingerprint="model")
    assert len(again) == 5
    assert follows(again, [2]) == [70_000]
    assert follows(again, [4]) == [5]
    assert [entry.name for entry in path.parent.iterdir()] == ["p"], "nothing half-written is left"


def test_every_damaged_byte_is_noticed(tmp_path):
    path = tmp_path / "p"
    SuffixPool("p", path=path).add([1, 2, 3])
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CorruptPoolError):
            SuffixPool("p", path=path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptPoolError):
            SuffixPool("p", path=path)


@pytest.mark.parametrize(("name", "fingerprint"), [("other", "model"), ("p", "another model")])
def test_file_of_another_pool_or_model_is_refused(tmp_path, name, fingerprint):
    path = tmp_path / "p"
    SuffixPool("p", path=path, fingerprint="model").add([1])
    with pytest.raises(CorruptPoolError, match="use another pool name"):
        SuffixPool(name, path=path, fingerprint=fingerprint)


def test_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(MAGIC.replace(b"1", b"2"))
    with pytest.raises(CorruptPoolError, match="version"):
        SuffixPool("p", path=path)


@pytest.mark.parametrize("name", ["", "../p", "a b", ".hidden", "x" * 101])
def test_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(SpeculativeConfigError, match="suffix_pool"):
        SuffixPool(name)


def test_pool_without_room_is_refused():
    with pytest.raises(SpeculativeConfigError, match="at least 1"):
        SuffixPool("p", 0)
