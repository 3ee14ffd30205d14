"""The script behind docs/choosing.md, on figures that can be added up by hand, and once on a tiny model."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from pilotfish.bench.oracle import Hindsight
from pilotfish.bench.speed_result import SpeedResult
from pilotfish.bench.step import StepPass, StepReport
from tests.bench.runs import fast_run, made_pair

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "choosing.py"
PASSES = (StepPass(1, 0.2, 0.1, None), StepPass(3, 0.25, 0.1, 0.125))
PAGE = "# Title\n\n<!-- figures: begin -->\nold\n<!-- figures: end -->\n\nthe end\n"


@pytest.fixture
def choosing(tmp_path, monkeypatch, capsys):
    """Runs the script; gives exit code and what it printed."""

    def run(*arguments, **constants):
        monkeypatch.syspath_prepend(SCRIPT.parent)
        script = runpy.run_path(str(SCRIPT))
        main = script["main"]
        main.__globals__.update(constants)
        monkeypatch.setattr(sys, "argv", ["choosing.py", *map(str, arguments)])
        return main(), capsys.readouterr().out

    return run


@pytest.fixture
def reports(tmp_path):
    """Writes a report for a drafter."""

    def write(name, config, seconds, *, oracle=False, verify_seconds=0.3):
        pair = made_pair(speculative=fast_run(seconds=seconds, verify_seconds=verify_seconds))
        result = SpeedResult(
            True, {0.0: [pair]}, {0.0: []}, pass_costs=StepReport("int8", 64, 1, 1e10, 1e11, PASSES, None)
        )
        if oracle:
            result.hindsight = {0.0: [("chat", Hindsight({"ngram": (0, 1, 0, 0, 0)}, {"ngram": 0.0}))]}
        settings = {"speculative_config": config, "model": "tiny", "max_tokens": 5, "questions": {"count": 1}}
        report = {
            **result.as_dict(),
            "settings": settings,
            "commit": None,
            "date": "today",
            "hardware": {"processor": "a processor"},
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(report), encoding="utf-8")
        return path

    return write


NGRAM = {"method": "ngram", "num_speculative_tokens": 2}


def test_prediction_that_is_right_passes_and_page_and_plots_are_written(choosing, reports, tmp_path):
    """Two tokens a round, which takes 1.3 plain steps of 0.25 s. By the passes, which were timed apart, it should take
    1.4: one, 0.2 for two rows and 0.2 for drafting."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    paths = [reports("auto", {"method": "auto"}, 1.6, oracle=True), reports("ngram-2", NGRAM, 1.65)]
    code, out = choosing("render", *paths, "--docs", page, "--plots", tmp_path / "plots")
    assert code == 0
    assert "| ngram k=2 | 0 | overall | 2.00 | 2.00 | 0.200 | 0.200 | 0.000 | 1.43x | 1.54x | -7.1% |" in out
    assert "| category | ngram k=2 | auto | in hindsight |" in out
    assert "| chat | 1.54 | 1.67 | 1.29 |" in out
    assert "| to one row | 1.00 | 1.25 |" in out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Title")
    assert text.endswith("the end\n")
    assert "old" not in text
    assert out.strip() in text
    assert "![pass cost](plots/pass_cost.svg)" in text
    names = {"expected_speed.svg", "pass_cost.svg", "speed_by_length.svg", "speed_by_category.svg", "choosing.json"}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == names
    choosing("render", *paths, "--docs", page, "--plots", tmp_path / "plots")
    assert page.read_text(encoding="utf-8") == text


def test_prediction_off_by_more_than_a_tenth_fails(choosing, reports):
    code, out = choosing("render", reports("ngram-2", NGRAM, 2.35, verify_seconds=1.0))
    assert code == 1
    assert "off by more than 10%: ngram k=2, T=0: +92.9%" in out


def test_page_without_a_place_for_the_tables_is_refused(choosing, reports, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected the place"):
        choosing("render", reports("ngram-2", NGRAM, 1.5), "--docs", page)
    assert page.read_text(encoding="utf-8") == "nothing"


def test_reports_are_measured_and_measured_on(choosing, tiny_directory, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question_id": 1, "category": "chat", "turns": ["the shark the shark"]}))
    flags = ("--directory", tmp_path / "runs", "--model", tiny_directory, "--max-tokens", 6, "--weights", "auto")
    configs = {"ngram-2": {**NGRAM, "prompt_lookup_min": 1}, "auto": {"method": "auto"}}
    for _ in range(2):
        assert choosing("measure", questions, *flags, "--threads", 1, CONFIGS=configs)[0] == 0
    names = {f"{name}.{kind}" for name in configs for kind in ("json", "jsonl")}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    lines = (tmp_path / "runs" / "auto.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 2 * 3, "the second time nothing was asked again"
    _, out = choosing("render", *sorted((tmp_path / "runs").glob("*.json")))
    assert "Speed over plain decoding at temperature 1:" in out
