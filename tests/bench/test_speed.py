import json

import pytest

import pilotfish.engine.speculation
from pilotfish.bench import report as reports
from pilotfish.bench.measure import run_request
from pilotfish.bench.partial import PartialResults
from pilotfish.bench.questions import Question
from pilotfish.bench.speed import header, measure_speed
from pilotfish.bench.speed_result import SpeedSettings
from pilotfish.bench.step import StepPass, StepReport
from pilotfish.engine.llm import LLM
from pilotfish.errors import InvalidInputError, SamplingParamsError, SpeculativeConfigError
from tests.bench.lying import lie_when_verifying

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}
QUESTIONS = [
    Question(0, 11, "chat", ("Where is the shark? Where is the shark?", "And the pilotfish?")),
    Question(1, 12, "code", ("Numbers such as 7, 42 and 7, 42",)),
    Question(2, 13, "code", ("The shark looks once and the shark looks once",)),
]
FREE_ROWS = StepReport(
    "float32", 64, 1, None, None, (StepPass(1, 0.001, None, None), StepPass(17, 0.001, None, 0.0)), None
)
SETTINGS = SpeedSettings((0.0, 1.0), max_tokens=12, repeats=2, seed=5)
HEADER = header("tiny", NGRAM, QUESTIONS, SETTINGS)


class Recorder:
    """Makes the requests, and remembers them."""

    def __init__(self):
        self.asked = []

    def __call__(self, llm, prompt, params):
        self.asked.append((llm.engine, llm.engine.drafter, tuple(prompt), params))
        return run_request(llm, prompt, params)


@pytest.fixture(scope="module")
def measured(llm, tmp_path_factory):
    recorder = Recorder()
    path = tmp_path_factory.mktemp("speed") / "results.jsonl"
    progress = []
    with PartialResults(path, HEADER) as results:
        result = measure_speed(
            llm, NGRAM, QUESTIONS, SETTINGS, results, run=recorder, progress=lambda *done: progress.append(done)
        )
    return result, recorder, path, progress


def test_both_sides_are_asked_the_same_by_turns_first(measured):
    _, recorder, _, progress = measured
    asked = recorder.asked
    assert len(asked) == 2 * 4 * 2 * 2
    plain_first = []
    for (_, first, prompt, params), (_, second, other_prompt, other_params) in zip(
        asked[::2], asked[1::2], strict=True
    ):
        assert (prompt, params) == (other_prompt, other_params)
        assert (first is None) != (second is None)
        plain_first.append(first is None)
    assert plain_first == [True, False] * 8
    assert progress[-1] == (32, 32)


def test_engine_lives_through_a_pass_and_is_asked_everything_once(measured):
    """Two passes at each of two temperatures, four requests in each: what one has learned, no repetition knows."""
    result, recorder, _, _ = measured
    asked = {}
    for engine, drafter, prompt, params in recorder.asked:
        asked.setdefault((id(engine), drafter is not None), []).append((prompt, params.seed))
    assert len(asked) == 2 * 4
    for requests in asked.values():
        assert len(requests) == len(set(requests)) == 4
    for temperature in (0.0, 1.0):
        earlier = [pair.speculative.earlier_requests for pair in result.pairs[temperature]]
        assert earlier == [0, 1, 2, 3] * 2
    assert [each["engines"] for each in result.as_dict()["temperatures"]] == [2, 2]


def test_cold_measurement_has_an_engine_and_a_drafter_for_every_request(llm):
    recorder = Recorder()
    settings = SpeedSettings((0.0,), max_tokens=4, cold=True)
    with PartialResults(None, {}) as results:
        result = measure_speed(llm, NGRAM, QUESTIONS, settings, results, run=recorder)
    drafters = [drafter for _, drafter, _, _ in recorder.asked if drafter is not None]
    assert len({id(drafter) for drafter in drafters}) == len(drafters) == 4
    assert len({id(engine) for engine, *_ in recorder.asked}) == 8
    assert result.as_dict()["temperatures"][0]["engines"] == 4
    assert header("tiny", NGRAM, QUESTIONS, settings)["cold"] is True


def test_categories_come_by_turns(llm):
    recorder = Recorder()
    questions = [Question(place, place, category, (category * 4,)) for place, category in enumerate("aabb")]
    with PartialResults(None, {}) as results:
        result = measure_speed(llm, NGRAM, questions, SpeedSettings((0.0,), max_tokens=2), results, run=recorder)
    assert [pair.category for pair in result.pairs[0.0]] == ["a", "b", "a", "b"]
    assert [params.seed for *_, params in recorder.asked[::2]] == [0, 2, 1, 3]


def test_seed_depends_on_the_place_and_not_on_side_or_repeat(measured):
    _, recorder, _, _ = measured
    assert [params.seed for *_, params in recorder.asked[:8]] == [5, 5, 5, 5, 6, 6, 7, 7]
    assert [params.temperature for *_, params in recorder.asked] == [0.0] * 16 + [1.0] * 16


def test_answers_become_part_of_the_conversation(measured, llm):
    result, recorder, _, _ = measured
    answer = result.pairs[0.0][0].plain.text
    conversation = [
        {"role": "user", "content": QUESTIONS[0].turns[0]},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": QUESTIONS[0].turns[1]},
    ]
    assert list(recorder.asked[2][2]) == llm.tokenizer.chat(conversation)


def test_json_has_the_promised_shape_and_the_counts_of_the_runs(measured):
    result, _, _, _ = measured
    report = json.loads(json.dumps(result.as_dict()))
    assert [each["temperature"] for each in report["temperatures"]] == [0.0, 1.0]
    assert report["overall"] == report["temperatures"][0]["overall"]
    assert list(report["categories"]) == ["chat", "code"]
    assert report["identical"] is True
    for figures in (report["overall"], *report["categories"].values()):
        assert {
            "plain_tokens_per_second",
            "speculative_tokens_per_second",
            "speedup",
            "tokens_per_round",
            "accepted_per_position",
            "identical",
        } <= set(figures)
        assert figures["identical"] is True
        assert figures["speedup"] == pytest.approx(
            figures["speculative_tokens_per_second"] / figures["plain_tokens_per_second"]
        )
        assert len(figures["speedup_by_repeat"]) == 2
    overall = report["overall"]
    assert overall["speculative"]["drafted_tokens"] > 0
    assert overall["plain"]["requests"] == 8
    assert overall["plain"]["tokens"] == overall["speculative"]["tokens"]
    assert overall["plain"]["tokens"] == sum(len(pair.plain.token_ids) for pair in result.pairs[0.0])
    assert overall["plain"]["tokens"] == sum(each["plain"]["tokens"] for each in report["categories"].values())
    assert report["pass_costs"] is None


def test_run_that_was_killed_goes_on_where_it_stopped(measured, llm, tmp_path):
    result, _, path, _ = measured
    lines = path.read_bytes().splitlines(keepends=True)
    resumed = tmp_path / "resumed.jsonl"
    resumed.write_bytes(b"".join(lines[:-4]) + lines[-4][:50])
    recorder = Recorder()
    with PartialResults(resumed, HEADER) as results:
        again = measure_speed(llm, NGRAM, QUESTIONS, SETTINGS, results, run=recorder)
    assert len(recorder.asked) == 4
    assert again.pairs[0.0] == result.pairs[0.0]
    assert again.pairs[1.0][:-2] == result.pairs[1.0][:-2]
    assert [pair.speculative.earlier_requests for pair in again.pairs[1.0][-2:]] == [0, 1], "engines start anew"
    assert [pair.plain.token_ids for pair in again.pairs[1.0]] == [pair.plain.token_ids for pair in result.pairs[1.0]]
    assert len(resumed.read_bytes().splitlines()) == len(lines)


def test_arithmetic_that_depends_on_the_pass_is_found_out(llm, monkeypatch):
    lie_when_verifying(monkeypatch, type(llm.engine.target))
    settings = SpeedSettings((0.0,), max_tokens=12)
    with PartialResults(None, {}) as results:
        result = measure_speed(llm, NGRAM, QUESTIONS, settings, results)
    report = result.as_dict()
    assert result.identical is False
    assert report["identical"] is report["overall"]["identical"] is False
    named = {each["question_id"] for each in report["overall"]["different"]}
    assert named <= {"11", "12", "13"}
    assert named
    assert f"ids differ in {len(report['overall']['different'])} answers" in reports.summary_line(report["overall"])


def test_turn_that_does_not_fit_the_context_is_named_and_not_asked(llm):
    long = "The shark looks once. " * llm.engine.target.config.context_length
    questions = [QUESTIONS[1], Question(5, "long", "chat", ("Hello", long, "never asked"))]
    with PartialResults(None, {}) as results:
        result = measure_speed(llm, NGRAM, questions, SpeedSettings((0.0,), max_tokens=4), results)
    (skipped,) = result.as_dict()["temperatures"][0]["skipped"]
    assert (skipped["question_id"], skipped["turn"]) == ("long", 1)
    assert [(pair.question_id, pair.turn) for pair in result.pairs[0.0]] == [(12, 0), ("long", 0)]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"repeats": 0}, InvalidInputError, "repeats=0"),
        ({"seed": -1}, InvalidInputError, "seed=-1"),
        ({"temperatures": ()}, InvalidInputError, "temperatures"),
        ({"temperatures": (1.0, 1.0)}, InvalidInputError, "each once"),
        ({"temperatures": (-1.0,)}, SamplingParamsError, "temperature"),
        ({"max_tokens": 0}, SamplingParamsError, "max_tokens"),
    ],
)
def test_settings_out_of_range_are_refused(values, error, message):
    with pytest.raises(error, match=message):
        SpeedSettings(**values)


@pytest.mark.parametrize(
    "config",
    [
        {"method": "suffix", "suffix_pool": "answers"},
        {"method": "auto", "drafters": [{"method": "ngram"}, {"method": "suffix", "suffix_pool": "answers"}]},
    ],
)
def test_drafter_that_keeps_answers_is_refused(llm, config):
    with PartialResults(None, {}) as results, pytest.raises(SpeculativeConfigError, match="suffix_pool='answers'"):
        measure_speed(llm, config, QUESTIONS, SETTINGS, results)


@pytest.mark.parametrize("config", ["auto", {"method": "suffix", "num_speculative_tokens": 2}, {"method": "recycle"}])
def test_every_kind_of_configuration_is_measured(llm, config):
    settings = SpeedSettings((0.0,), max_tokens=6)
    with PartialResults(None, header("tiny", config, QUESTIONS, settings)) as results:
        result = measure_speed(llm, config, QUESTIONS, settings, results)
    assert result.identical is True
    assert result.as_dict()["overall"]["speculative"]["requests"] == 4


def test_passes_are_calibrated_again_once_and_not_for_every_request(tiny_directory, monkeypatch):
    asked = []
    calibrated = pilotfish.engine.speculation.pass_time

    def counted(executor, fingerprint, *, recalibrate):
        asked.append(recalibrate)
        return calibrated(executor, fingerprint, recalibrate=False)

    monkeypatch.setattr(pilotfish.engine.speculation, "pass_time", counted)
    llm = LLM(tiny_directory, threads=1, speculative_config="auto", recalibrate=True)
    with PartialResults(None, {}) as results:
        measure_speed(llm, "auto", QUESTIONS[1:], SpeedSettings((0.0,), max_tokens=2), results)
    assert asked == [True, False, False], "the LLM's own, the warm-up's and the pass's"


def test_best_choice_in_hindsight_is_reported_by_category_and_resumed(llm, tmp_path):
    config = {"method": "auto", "drafters": [{"method": "ngram", "prompt_lookup_min": 1}, "suffix", "recycle"]}
    settings = SpeedSettings((0.0, 1.0), max_tokens=12, repeats=2)
    facts = header("tiny", config, QUESTIONS, settings)
    for asked in (2 * 4 * 2 * 2, 0):
        recorder = Recorder()
        with PartialResults(tmp_path / "r.jsonl", facts) as results:
            result = measure_speed(llm, config, QUESTIONS, settings, results, oracle=True, run=recorder)
        assert len(recorder.asked) == asked
        assert [len(each) for each in result.hindsight.values()] == [4, 4]
    lengths = [len(pair.plain.token_ids) for pair in result.pairs[0.0][:4]]
    for (_, answer), length in zip(result.hindsight[0.0], lengths, strict=True):
        assert set(answer.reach) == {"ngram", "suffix", "recycle"}
        assert {len(reach) for reach in answer.reach.values()} == {length}
    result.pass_costs = FREE_ROWS
    for figures in (result.as_dict()["overall"], *result.as_dict()["categories"].values()):
        assert figures["oracle"]["tokens_per_round"] >= 1
        assert figures["oracle"]["speedup"] > 0
        assert figures["expected"]["speedup"] > 0


def test_configuration_is_refused_before_anything_is_asked(llm):
    recorder = Recorder()
    with PartialResults(None, {}) as results, pytest.raises(SpeculativeConfigError, match="no key 'k'"):
        measure_speed(llm, {"method": "ngram", "k": 3}, QUESTIONS, SETTINGS, results, run=recorder)
    assert recorder.asked == []
