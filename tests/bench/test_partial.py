import json

import pytest

from pilotfish.bench.oracle import Hindsight
from pilotfish.bench.partial import Key, PartialResults
from pilotfish.errors import InvalidInputError
from tests.bench.runs import fast_run, made_run

HEADER = {"model": "tiny", "seed": 0, "temperatures": (0.0, 1.0)}
PLAIN = Key(0.0, 0, 1, 0, "plain")
FAST = Key(0.0, 0, 1, 0, "speculative")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "results.jsonl"
    with PartialResults(path, HEADER) as results:
        results.add(PLAIN, made_run())
        results.add(FAST, fast_run())
    return path


def test_runs_are_there_again(path):
    with PartialResults(path, HEADER) as results:
        assert len(results) == 2
        assert results.get(PLAIN) == made_run()
        assert results.get(FAST) == fast_run()
        assert results.get(FAST._replace(repeat=1)) is None
    assert len(path.read_text().splitlines()) == 3


def test_hindsight_is_there_again(path):
    key, known = FAST._replace(side="hindsight"), Hindsight({"ngram": (0, 2, 1)}, {"ngram": 0.001})
    with PartialResults(path, HEADER) as results:
        results.add(key, known)
    with PartialResults(path, HEADER) as results:
        assert results.get(key) == known


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_last_line_cut_short_is_dropped_and_can_be_written_again(path, cut):
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with PartialResults(path, HEADER) as results:
        assert results.get(PLAIN) == made_run()
        assert results.get(FAST) is None
        results.add(FAST, fast_run())
    assert path.read_bytes() == whole


def test_file_cut_within_its_header_begins_anew(path):
    path.write_bytes(path.read_bytes()[:10])
    with PartialResults(path, HEADER) as results:
        assert len(results) == 0
    assert json.loads(path.read_text()) == {"header": json.loads(json.dumps(HEADER))}


def test_results_of_other_settings_are_refused(path):
    with pytest.raises(InvalidInputError, match="holds results with seed=0, now it is 1"):
        PartialResults(path, {**HEADER, "seed": 1})


def test_line_that_is_no_result_is_refused_with_its_number(path):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"temperature": 0}', lines[2]]) + "\n")
    with pytest.raises(InvalidInputError, match=r"results\.jsonl:2: not a result"):
        PartialResults(path, HEADER)
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(InvalidInputError, match=r"results\.jsonl:1: expected the header"):
        PartialResults(path, HEADER)


def test_without_a_file_runs_are_kept_in_memory():
    with PartialResults(None, HEADER) as results:
        results.add(PLAIN, made_run())
        assert results.get(PLAIN) == made_run()
