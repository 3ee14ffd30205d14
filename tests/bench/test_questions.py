import json
from collections import Counter

import pytest

from pilotfish.bench.questions import built_in, by_turns_of_categories, load_questions, select
from pilotfish.errors import InvalidInputError

GOOD = {"question_id": 1, "category": "chat", "turns": ["Hello", "And now?"], "reference": ["not read"]}


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_built_in_set_has_five_questions_of_each_of_eight_categories():
    questions = built_in()
    assert Counter(question.category for question in questions) == dict.fromkeys(
        ("chat", "code", "code_edit", "maths", "summary", "retrieval_answer", "translation", "long_form"), 5
    )
    assert len({question.turns for question in questions}) == 40
    assert [question.place for question in questions] == list(range(40))
    assert any(len(question.turns) > 1 for question in questions)
    for question in questions:
        if question.category == "summary":
            assert 150 <= len(question.turns[0].split()) <= 310


def test_file_in_spec_bench_form_is_read(tmp_path):
    other = {**GOOD, "question_id": "b", "turns": ["a\u2028line separator is no end of line"]}
    first, second = load_questions(write(tmp_path / "q.jsonl", GOOD, "", json.dumps(other, ensure_ascii=False)))
    assert (first.question_id, first.category, first.turns) == (1, "chat", ("Hello", "And now?"))
    assert (second.place, second.question_id) == (1, "b")
    assert second.turns == ("a\u2028line separator is no end of line",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ({"question_id": 2, "category": "chat"}, "no 'turns'"),
        ({**GOOD, "question_id": 2, "turns": []}, "turns is []"),
        ({**GOOD, "question_id": 2, "turns": ["  "]}, "turns is"),
        ({**GOOD, "question_id": 2, "turns": "Hello"}, "turns is Hello"),
        ({**GOOD, "question_id": 2, "category": 7}, "category is 7"),
        ({**GOOD, "question_id": None}, "question_id is None"),
        (GOOD, "question_id 1 is that of line 1 too"),
    ],
)
def test_bad_line_is_refused_with_its_number(tmp_path, line, message):
    path = write(tmp_path / "q.jsonl", GOOD, "", line)
    with pytest.raises(InvalidInputError) as refusal:
        load_questions(path)
    assert f"{path}:3: " in str(refusal.value)
    assert message in str(refusal.value)


def test_file_that_is_absent_empty_or_not_utf8_is_refused(tmp_path):
    (tmp_path / "latin1.jsonl").write_bytes("façade".encode("latin-1"))
    for name, message in (("absent", "cannot read"), ("empty", "has no questions"), ("latin1.jsonl", "not UTF-8")):
        if name == "empty":
            (tmp_path / name).write_text("\n\n", encoding="utf-8")
        with pytest.raises(InvalidInputError, match=message):
            load_questions(tmp_path / name)


def test_limit_counts_by_category_and_first_turn_drops_the_others():
    questions = select(built_in(), limit=2, first_turn=True)
    assert len(questions) == 16
    assert all(len(question.turns) == 1 for question in questions)
    assert [question.place for question in questions[:4]] == [0, 1, 5, 6]
    with pytest.raises(InvalidInputError, match="limit=0"):
        select(built_in(), limit=0)


def test_first_few_by_turns_are_of_all_categories():
    mixed = by_turns_of_categories(built_in())
    assert len({question.category for question in mixed[:8]}) == 8
    assert sorted(question.place for question in mixed) == list(range(40))
