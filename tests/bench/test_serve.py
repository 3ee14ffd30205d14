"""The sweep and its reports, from a stand-in for a server that answers at once."""

import json
from dataclasses import replace

import pytest

from pilotfish.bench.http_client import Chunk, SpeculationReport
from pilotfish.bench.load import Closed, Open
from pilotfish.bench.questions import Question
from pilotfish.bench.serve import ServeSettings, Side, measure_serving, speculation_fields
from pilotfish.bench.serve_report import HEADINGS, failures, html, markdown, summary_line, table_rows
from pilotfish.errors import InvalidInputError, RemoteServerError

QUESTIONS = [Question(place, f"q{place}", "chat", (f"question {place}", "never asked")) for place in range(3)]
SETTINGS = ServeSettings(requests=4, max_tokens=8, repeats=2, seed=5)
FACTS = dict.fromkeys(("command", "commit", "date", "seed"), "x") | {"settings": {}, "versions": {}, "hardware": {}}


class Engine:
    """Answers a question with its own words, and notes who asked what."""

    def __init__(self):
        self.asked = []

    def side(self, name, *, engine="engine", answer=lambda job: job.messages[0]["content"]):
        def ask(job):
            self.asked.append((name, job))
            words = answer(job).split()
            for word in words:
                yield Chunk(word, (word,), (False,))
            yield Chunk("", completion_tokens=len(words), speculation=SpeculationReport(len(words), 0, 0))

        return Side(name, engine, ask)


@pytest.fixture
def engine():
    return Engine()


def test_sides_get_the_same_requests_by_turns_first(engine):
    levels = [Closed(1), Open(1e6)]
    result = measure_serving([engine.side("plain"), engine.side("speculative")], levels, QUESTIONS, SETTINGS)
    warm_up, rest = engine.asked[:6], engine.asked[6:]
    assert [(name, job.key, job.options["max_tokens"]) for name, job in warm_up] == [
        (name, key, tokens) for name in ("plain", "speculative") for key, tokens in (("q0", 8), ("q1", 1), ("q2", 1))
    ]
    assert len(rest) == 2 * 2 * 2 * 4
    assert [rest[place][0] for place in range(0, 32, 4)] == ["plain", "speculative", "speculative", "plain"] * 1 + [
        "speculative",
        "plain",
        "plain",
        "speculative",
    ]
    for place in range(0, 8, 4):  # one at a time, so they come in order
        assert [job.key for _, job in rest[place : place + 4]] == ["q0", "q1", "q2", "q0"]
        assert [job.options["seed"] for _, job in rest[place : place + 4]] == [5, 6, 7, 5]
    assert all(len(runs) == 2 for by_side in result.runs.values() for runs in by_side.values())


def test_report_has_every_load_and_side(engine):
    levels = [Closed(2), Closed(1), Open(1e6)]
    result = measure_serving([engine.side("plain"), engine.side("speculative")], levels, QUESTIONS, SETTINGS)
    report = json.loads(json.dumps({**result.as_dict(), **FACTS}))
    assert report["identical"] is True
    assert [(level["name"], level["kind"]) for level in report["levels"]] == [
        ("2 at a time", "closed"),
        ("1 at a time", "closed"),
        ("1e+06 a second", "open"),
    ]
    for level in report["levels"]:
        assert list(level["sides"]) == ["plain", "speculative"]
        assert level["sides"]["plain"]["speedup"] == 1
        assert level["sides"]["speculative"]["requests"] == 8
        assert level["sides"]["speculative"]["tokens"] == 16
        assert len(level["sides"]["speculative"]["speedup_by_repeat"]) == 2
    rows = list(table_rows(report))
    assert len(rows) == 6
    assert all(len(row) == len(HEADINGS) for row in rows)
    text, page = markdown(report), html(report)
    assert "| 2 at a time | speculative | 8 |" in text
    assert page.count("<svg") == 6
    assert "Throughput" in page
    assert "src=" not in page
    assert "same text" in summary_line(report)


def test_text_that_depends_on_the_side_or_on_the_load_is_named(engine):
    sides = [
        engine.side("plain"),
        engine.side("speculative", answer=lambda job: "other words" if job.key == "q1" else job.messages[0]["content"]),
        engine.side("elsewhere", engine="peer", answer=lambda job: "its own words"),
    ]
    result = measure_serving(sides, [Closed(1)], QUESTIONS, SETTINGS)
    assert result.different() == {"engine": ["q1"], "peer": []}
    report = {**result.as_dict(), **FACTS}
    assert report["identical"] is False
    assert "engine: q1" in summary_line(report)


def test_failures_are_told(engine):
    def busy(job):
        if job.key == "q2" and job.options["max_tokens"] > 1:
            raise RemoteServerError("busy, come back", 429)
        return "fine"

    result = measure_serving([engine.side("plain", answer=busy)], [Closed(1)], QUESTIONS, SETTINGS)
    report = {**result.as_dict(), **FACTS}
    assert list(failures(report)) == ["1 at a time, plain: 2 of 8 requests failed: busy, come back"]
    assert "6 + 2 failed" in markdown(report)
    assert "busy, come back" in html(report)


def test_side_that_does_not_answer_at_all_ends_it(engine):
    def gone(job):
        raise RemoteServerError("gone")

    with pytest.raises(RemoteServerError, match="gone"):
        measure_serving([engine.side("plain", answer=gone)], [Closed(1)], QUESTIONS, SETTINGS)


def test_fresh_prompts_never_begin_alike(engine):
    settings = replace(SETTINGS, fresh_prompts=True)
    result = measure_serving(
        [engine.side("plain"), engine.side("speculative")], [Closed(1), Closed(2)], QUESTIONS, settings
    )
    sent = [job.messages for _, job in engine.asked[2:]]
    assert len(sent) == 32
    assert len({messages[0]["content"] for messages in sent}) == 32
    assert {messages[0]["role"] for messages in sent} == {"system"}
    assert {messages[1]["content"] for messages in sent} == {"question 0", "question 1", "question 2"}
    report = {**result.as_dict(), **FACTS, "settings": {"fresh_prompts": True}}
    assert "not compared" in summary_line(report)


def test_plain_requests_ask_for_no_draft():
    assert speculation_fields(plain=True) == {"speculative": {"report": True, "num_speculative_tokens": 0}}
    assert speculation_fields(plain=False) == {"speculative": {"report": True}}


def test_requests_grow_with_the_load():
    settings = ServeSettings()
    assert [settings.count(level) for level in (Closed(1), Closed(16), Open(3.0))] == [8, 36, 30]


@pytest.mark.parametrize("values", [{"requests": 0}, {"repeats": 0}, {"seed": -1}, {"max_tokens": 0}])
def test_settings_out_of_range_are_refused(values):
    with pytest.raises(InvalidInputError, match=next(iter(values))):
        ServeSettings(**values)


def test_nothing_to_measure_is_refused(engine):
    side = engine.side("plain")
    for sides, levels, questions in (
        ([], [Closed(1)], QUESTIONS),
        ([side], [], QUESTIONS),
        ([side], [Closed(1), Closed(1)], QUESTIONS),
        ([side], [Closed(1)], []),
    ):
        with pytest.raises(InvalidInputError, match="nothing to measure"):
            measure_serving(sides, levels, questions, SETTINGS)


def test_more_requests_than_can_be_kept_are_refused():
    with pytest.raises(InvalidInputError, match="requests=1000000000: expected at most 100000"):
        ServeSettings(requests=10**9)
    with pytest.raises(InvalidInputError, match="expected at most 100000 requests"):
        ServeSettings().count(Open(1e9))
