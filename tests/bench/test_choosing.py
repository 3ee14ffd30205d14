"""The script behind docs/choosing.md, on figures that can be added up by hand."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from pilotfish.bench.totals import compared
from tests.bench.runs import fast_run, made_pair

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "choosing.py"
PASSES = [{"rows": 1, "seconds": 0.2, "roofline_seconds": 0.1}, {"rows": 3, "seconds": 0.25, "roofline_seconds": 0.1}]


@pytest.fixture
def choosing(tmp_path, monkeypatch, capsys):
    """Runs the script on one report; gives exit code and what it printed."""

    def run(figures, *flags):
        report = {
            "command": "pilotfish bench speed",
            "commit": None,
            "date": "today",
            "hardware": {"processor": "a processor"},
            "settings": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "temperatures": [{"temperature": 0.0, "overall": figures, "categories": {"chat": figures}}],
            "pass_costs": {"context": 64, "passes": PASSES},
        }
        (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["choosing.py", str(tmp_path / "report.json"), *flags])
        return runpy.run_path(str(SCRIPT))["main"](), capsys.readouterr().out

    return run


def test_prediction_that_is_right_passes_and_plots_are_written(choosing, tmp_path):
    """Two tokens a round, at 1.4 plain steps of 0.25 s."""
    figures = compared([made_pair(speculative=fast_run(seconds=1.72))])
    code, out = choosing(figures, "--plots", str(tmp_path / "plots"))
    assert code == 0
    assert "| ngram k=2 | 0 | overall | 2.00 | 2.00 | 0.200 | 0.200 | 1.43x | 1.39x | +2.9% |" in out
    assert "| ngram k=2 | 0 | chat |" in out
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"expected_speed.svg", "pass_cost.svg"}


def test_prediction_off_by_more_than_a_tenth_fails(choosing):
    code, out = choosing(compared([made_pair()]), "--overall")
    assert code == 1
    assert "| 1.43x | 2.00x | -28.6% |" in out
    assert "chat" not in out
