import json

import pytest

from pilotfish.bench.tune import Candidate, candidates, load_prompts, tune
from pilotfish.engine.config import SpeculativeConfig
from pilotfish.errors import InvalidInputError, SpeculativeConfigError
from pilotfish.sampling.params import SamplingParams
from tests.bench.runs import made_run

PARAMS = SamplingParams(temperature=0.0, seed=0, max_tokens=8)
PROMPTS = [[place + 1] * 4 for place in range(40)]
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)


class Measured:
    """Gives each draft length the speed that a test says, and remembers who was asked what."""

    def __init__(self, speeds, ids=lambda draft_len: (1, 2, 3, 4, 5)):
        self.speeds, self.ids, self.asked = speeds, ids, []

    def __call__(self, llm, prompt, params):
        config = llm.speculative_config
        draft_len = 0 if config is None else config.num_speculative_tokens
        self.asked.append((draft_len, tuple(prompt)))
        return made_run(self.ids(draft_len), seconds=1.0 + 4 / self.speeds[draft_len], first_seconds=1.0)

    def prompts_of(self, draft_len):
        return [prompt for asked, prompt in self.asked if asked == draft_len]


def search(llm, measured, *, prompts=PROMPTS, seconds=1e9, **options):
    to_measure = candidates([{"method": "ngram"}], LENGTHS)
    return tune(llm, prompts, to_measure, PARAMS, seconds=seconds, run=measured, **options)


def test_slower_half_is_dropped_and_the_best_is_recommended(llm):
    measured = Measured({0: 10.0, 1: 11.0, 2: 12.0, 3: 20.0, 4: 19.0, 5: 15.0, 6: 9.0, 7: 8.0, 8: 7.0})
    result = search(llm, measured)
    assert result.config == {"method": "ngram", "num_speculative_tokens": 3}
    assert result.recommendation == (
        "Use ngram k=3: on these 40 prompts it makes 20.0 tokens/s, 2.00 times plain decoding."
    )
    asked = {draft_len: len(measured.prompts_of(draft_len)) for draft_len in range(9)}
    assert asked == {0: 40, 3: 40, 4: 40, 5: 24, 2: 24, 1: 8, 6: 8, 7: 8, 8: 8}
    assert [trial.candidate.name for trial in result.trials[:4]] == ["ngram k=3", "ngram k=4", "ngram k=5", "ngram k=2"]


def test_all_are_measured_on_the_same_prompts_in_changing_order(llm):
    measured = Measured(dict.fromkeys(range(9), 10.0))
    search(llm, measured, prompts=PROMPTS[:3])
    for draft_len in range(9):
        assert measured.prompts_of(draft_len) == [tuple(prompt) for prompt in PROMPTS[:3]]
    assert [draft_len for draft_len, _ in measured.asked[::9]] == [0, 1, 2]


def test_candidate_has_one_engine_for_all_prompts_which_saw_none_of_them_before(llm):
    engines = {}

    class Watching(Measured):
        def __call__(self, llm, prompt, params):
            engines.setdefault(llm.speculative_config, set()).add(id(llm.engine))
            assert len(self.prompts_of(0)) or llm.engine.totals.rounds == 0, "the warm-up had another engine"
            return super().__call__(llm, prompt, params)

    search(llm, Watching(dict.fromkeys(range(9), 10.0)), prompts=PROMPTS[:4])
    assert len(engines) == 9
    assert all(len(each) == 1 for each in engines.values())


def test_plain_decoding_wins_where_no_drafter_pays(llm):
    result = search(llm, Measured({0: 10.0, **dict.fromkeys(LENGTHS, 9.0)}))
    assert result.best.config is None
    assert result.config == {"method": "off"}
    assert result.recommendation.startswith("Leave speculation off: on these 40 prompts plain decoding makes 10.0")
    assert "is 0.90 times as fast" in result.recommendation


def test_speedup_of_a_dropped_candidate_is_over_its_own_prompts(llm):
    """Plain decoding is quick on the first prompts and slow later; a dropped candidate saw the first ones only."""

    class Drifting(Measured):
        def __call__(self, llm, prompt, params):
            if llm.speculative_config is None:
                self.speeds[0] = 10.0 if prompt[0] <= 8 else 1.0
            return super().__call__(llm, prompt, params)

    result = search(llm, Drifting({0: 10.0, **dict.fromkeys(LENGTHS, 20.0), 8: 5.0}))
    (last,) = (trial for trial in result.trials if trial.candidate.name == "ngram k=8")
    assert len(last.runs) == 8
    assert result.speedup_of(last) == pytest.approx(0.5)


def test_time_limit_ends_the_search_but_not_before_one_prompt(llm):
    now = [0.0]

    class Slow(Measured):
        def __call__(self, llm, prompt, params):
            now[0] += 1.0
            return super().__call__(llm, prompt, params)

    speeds = {0: 10.0, **{draft_len: 10.0 + draft_len for draft_len in LENGTHS}}
    spent = []
    measured = Slow(dict(speeds))
    result = search(llm, measured, seconds=0.5, clock=lambda: now[0], progress=lambda *done: spent.append(done))
    assert len(measured.asked) == 9
    assert result.config["num_speculative_tokens"] == 8
    assert spent == [(0.5, 0.5)]
    now[0] = 0.0
    measured = Slow(dict(speeds))
    search(llm, measured, seconds=60.0, clock=lambda: now[0])
    assert 45 <= len(measured.asked) <= 69


def test_different_ids_are_reported(llm):
    lying = Measured(
        dict.fromkeys(range(9), 10.0), ids=lambda draft_len: (1, 2, 3, 4, 6) if draft_len == 5 else (1, 2, 3, 4, 5)
    )
    result = search(llm, lying)
    assert result.identical is False
    same = {each["name"]: each["identical"] for each in result.as_dict()["candidates"]}
    assert [name for name, identical in same.items() if not identical] == ["ngram k=5"]
    assert search(llm, Measured(dict.fromkeys(range(9), 10.0))).identical is True


def test_real_requests_are_measured(llm):
    prompts = [llm.tokenizer.encode(text) for text in ("the shark the shark the", "once more and once more")]
    result = tune(llm, prompts, candidates([{"method": "ngram", "prompt_lookup_min": 1}], (1, 4)), PARAMS, seconds=60.0)
    figures = json.loads(json.dumps(result.as_dict()))
    assert [each["requests"] for each in figures["candidates"]] == [2, 2, 2]
    assert figures["candidates"][0]["name"] == "plain"
    assert all(each["tokens_per_second"] > 0 for each in figures["candidates"])
    assert any(each["drafted_tokens"] > 0 for each in figures["candidates"])
    assert figures["identical"] is True
    assert figures["recommendation"].startswith(("Use ngram", "Leave speculation off"))


def test_default_candidates_are_all_that_need_no_model():
    found = candidates(None, None)
    assert {"method": "ngram", "num_speculative_tokens": 4} in [candidate.config for candidate in found]
    assert all(candidate.config["method"] != "draft_model" for candidate in found)
    for candidate in found:
        SpeculativeConfig.from_mapping(candidate.config)


def test_given_length_stands_and_names_tell_candidates_apart():
    found = candidates([{"method": "ngram", "num_speculative_tokens": 7}, {"model": "small"}], (2,))
    assert [candidate.name for candidate in found] == ["ngram k=7", "draft_model model=small k=2"]
    assert Candidate(None).name == "plain"


@pytest.mark.parametrize(
    ("drafters", "lengths"),
    [
        ([{"method": "magic"}], None),
        ([{"method": "draft_model"}], None),
        ([{"method": "ngram", "k": 3}], None),
        ([{"method": "ngram"}], (-1,)),
        ([{"method": "ngram", "num_speculative_tokens": "many"}], None),
    ],
)
def test_configuration_that_was_asked_for_is_not_left_out_silently(drafters, lengths):
    with pytest.raises(SpeculativeConfigError):
        candidates(drafters, lengths)


def test_nothing_to_measure_is_refused(llm):
    for prompts, to_measure, seconds in (([], candidates(None, (1,)), 1.0), (PROMPTS, [], 1.0)):
        with pytest.raises(InvalidInputError, match="nothing to measure"):
            tune(llm, prompts, to_measure, PARAMS, seconds=seconds)
    with pytest.raises(InvalidInputError, match="seconds=0"):
        tune(llm, PROMPTS, candidates(None, (1,)), PARAMS, seconds=0.0)


def test_prompts_come_from_text_jsonl_or_the_built_in_set(tmp_path):
    (tmp_path / "p.txt").write_text("one\n\n  two\n", encoding="utf-8")
    assert load_prompts(tmp_path / "p.txt") == ["one", "two"]
    lines = [{"prompt": "one\nline"}, {"question_id": 1, "category": "c", "turns": ["first", "second"]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert load_prompts(tmp_path / "p.jsonl") == ["one\nline", "first"]
    assert len(load_prompts(None)) == 40


@pytest.mark.parametrize("line", ['{"text": "x"}', '{"prompt": 3}', '{"turns": []}', "plain text", '{"prompt": " "}'])
def test_bad_prompt_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"p\.jsonl:2: "):
        load_prompts(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="has no prompts"):
        load_prompts(path)
