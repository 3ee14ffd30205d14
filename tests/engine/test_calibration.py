"""Pass times are measured once per machine, model and executor, and survive a damaged or missing cache."""

import pytest

from pilotfish.engine import calibration
from pilotfish.models.pass_cost import PassCost
from tests.engine.tiny import tiny_target


@pytest.fixture
def measurements(monkeypatch, tmp_path):
    """How often the executor was measured; each time it is a second slower."""
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path))
    calls = []

    def measure(executor, rows, *, context, time_limit):
        calls.append((tuple(rows), context, time_limit))
        return tuple(PassCost(count, float(len(calls) + count), 0.0, 1) for count in rows)

    monkeypatch.setattr(calibration, "measure_pass", measure)
    return calls


def test_times_are_measured_once_per_model(measurements):
    target = tiny_target()
    first = calibration.pass_time(target, "a")
    assert first(1) == 2.0
    assert calibration.pass_time(target, "a")(1) == 2.0
    assert len(measurements) == 1
    assert calibration.pass_time(target, "b")(1) == 3.0
    assert calibration.pass_time(target, "a", recalibrate=True)(1) == 4.0
    assert calibration.pass_time(target, "a")(1) == 4.0


def test_rows_and_context_fit_the_model(measurements):
    calibration.pass_time(tiny_target(context_length=24), "a")
    rows, context, seconds = measurements[0]
    assert max(rows) + context <= 24
    assert seconds < 2


@pytest.mark.parametrize("text", ["{", "[]", '{"1": -1}', '{"one": 1}', "{}"])
def test_damaged_file_is_measured_anew(measurements, tmp_path, text):
    calibration.pass_time(tiny_target(), "a")
    (path,) = (tmp_path / "pass_times").iterdir()
    path.write_text(text)
    assert calibration.pass_time(tiny_target(), "a")(1) == 3.0


def test_cache_that_cannot_be_written_is_no_error(measurements, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "file"))
    assert calibration.pass_time(tiny_target(), "a")(1) == 2.0


def test_passes_of_large_batches_are_measured_apart(measurements):
    times = calibration.pass_time(tiny_target(context_length=512), "a")
    assert [max(rows) for rows, _, _ in measurements] == [32, 128]
    assert sum(seconds for _, _, seconds in measurements) <= 2
    assert times(128) == 2 + 128
