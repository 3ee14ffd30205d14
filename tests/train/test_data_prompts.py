"""Prompts: what is usable, what is the same, a user's file, the template's parts, plans by number."""

import json
from collections import Counter

import pytest

from pilotfish.errors import InvalidInputError, PromptError
from pilotfish.models.tokenizer import load_tokenizer
from pilotfish.train.plans import derived_seed, make_plan, starter
from pilotfish.train.prompts import prompt_hash, read_prompts, usable, whole_sentences
from pilotfish.train.starters import STARTERS
from pilotfish.train.template import TurnTemplate, without_end
from tests.models.tiny_models import tiny_tokenizer
from tests.train.talking import settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is a pilotfish?", True),
        ("Was ist ein Lotsenfisch, und wovon lebt er?", True),
        ("領航魚吃什麼東西呢請告訴我", True),
        ("def f(x):\n\treturn x + 1", True),
        ("Hi!", False),
        ("What is \ufffd a pilotfish?", False),
        ("What is \x07 a pilotfish?", False),
        ("((((]]]]{{{{ what is this ))))}}}}&&&&&&", False),
        ("say " + "a" * 60, False),
        ("I want to go to the shop and " * 12, False),
    ],
)
def test_usable_tells_prompts_from_noise(text, expected):
    assert usable(text) is expected


def test_same_prompt_has_the_same_hash():
    assert prompt_hash("What  is\nit?") == prompt_hash(" what is it? ")
    assert prompt_hash("What is it?") != prompt_hash("What is it")
    assert -(2**63) <= prompt_hash("What is it?") < 2**63


def test_text_cut_off_ends_with_its_last_sentence():
    assert whole_sentences("One. Two! And then") == "One. Two!"
    assert whole_sentences("and then") == ""


def test_file_of_prompts_is_read_and_repetitions_left_out(tmp_path):
    text = tmp_path / "prompts.txt"
    text.write_text("What is it?\n\n  what IS it? \nAnd this?\n", encoding="utf-8")
    assert read_prompts(text, "prompt") == [("What is it?",), ("And this?",)]
    rows = [{"q": "One?"}, {"q": ["Two?", " Three? "], "x": 1}]
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_prompts(lines, "q") == [("One?",), ("Two?", "Three?")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", "", "has no prompts"),
        ("p.txt", "\n \n", "has no prompts"),
        ("p.jsonl", '{"prompt": "x"}\n{"question": "y"}', "line 2: expected text.*'prompt'.*got question"),
        ("p.jsonl", '{"prompt": []}', "line 1: expected text"),
        ("p.jsonl", "no json", "line 1: expected a JSON object"),
        ("p.jsonl", "[1]", "line 1: expected text.*got list"),
    ],
)
def test_bad_file_of_prompts_is_named_with_its_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PromptError, match=message):
        read_prompts(path, "prompt")


def test_missing_file_of_prompts_is_named(tmp_path):
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt", "prompt")


def test_template_parts_join_to_the_templates_own_conversation(tmp_path):
    tokenizer = load_tokenizer(tiny_tokenizer(tmp_path))
    template = TurnTemplate(tokenizer)
    assert template.opening("the shark") == tokenizer.chat([{"role": "user", "content": "the shark"}])
    answer = tokenizer.encode("looks once")
    whole = tokenizer.chat(
        [
            {"role": "user", "content": "the shark"},
            {"role": "assistant", "content": "looks once"},
            {"role": "user", "content": "and then"},
        ]
    )
    ended = [*answer, tokenizer.encode("<|im_end|>")[-1]]
    history = [*template.opening("the shark"), *without_end(ended, [ended[-1]])]
    assert history + template.next_turn("and then") == whole
    assert whole[: len(history) + len(template.next_prefix())] == history + template.next_prefix()
    assert template.opening("the shark")[: len(template.opening_prefix(""))] == template.opening_prefix("")


def test_tokenizer_without_a_template_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="has no chat template"):
        TurnTemplate(load_tokenizer(tiny_tokenizer(tmp_path, chat=False)))


def test_plans_follow_the_settings_shares():
    """10,000 plans: a share is off by more than 0.03 once in 10**8 runs; these are one fixed run."""
    own = settings(temperatures=((0.0, 0.5), (1.0, 0.5)), follow_ups=0.2, max_turns=3, starters=0.5)
    plans = [make_plan(own, (), number) for number in range(10_000)]
    turns = Counter(plan.max_turns for plan in plans)
    assert abs(sum(plan.temperature == 0 for plan in plans) / 10_000 - 0.5) < 0.03
    assert abs(turns[1] / 10_000 - 0.8) < 0.03
    assert abs(turns[3] / 10_000 - 0.04) < 0.03
    begun = [starter(own, number, 0) for number in range(10_000)]
    assert abs(sum(text != "" for text in begun) / 10_000 - 0.5) < 0.03
    assert {text for text in begun if text} == set(STARTERS)
    assert len(set(STARTERS)) == len(STARTERS)


def test_plan_ends_with_the_prompts_unless_others_are_invented():
    prompts = [("one", "two"), ("three",)]
    own = settings(prompts="x", passes=2, invent=False)
    plans = [make_plan(own, prompts, number) for number in range(6)]
    assert [plan and plan.user_turns for plan in plans] == [*prompts, *prompts, None, None]
    invented = make_plan(settings(prompts="x", passes=2), prompts, 4)
    assert invented.user_turns == ()


def test_seeds_differ_by_run_number_and_purpose():
    seeds = {derived_seed(*each) for each in ((0, 0, "a"), (0, 0, "b"), (0, 1, "a"), (1, 0, "a"), (10, 0, "a"))}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**53 for seed in seeds)
