"""Questions to measure on: files in Spec-Bench's form, and a set of our own.

Owns the form and its checks. A file has one JSON object per line: `question_id`, `category`, and `turns`, the user's
messages of one conversation (https://github.com/hemingkx/Spec-Bench). Other keys, such as references, are not read.
Knows no model.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pilotfish.errors import InvalidInputError

BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class Question:
    """One conversation.

    Attributes:
        place: its number in the file, from 0; a request's seed depends on it.
        question_id: as in the file, unique there.
        category: figures are given by category.
        turns: the user's messages.
    """

    place: int
    question_id: int | str
    category: str
    turns: tuple[str, ...]


def built_in() -> list[Question]:
    """Forty questions over eight categories, five of each, in the categories' order."""
    text = resources.files("pilotfish.bench").joinpath("data/questions.jsonl").read_text(encoding="utf-8")
    return _parse(text.splitlines(), BUILT_IN)


def load_questions(path: str | Path) -> list[Question]:
    """The questions of a file in Spec-Bench's form.

    Raises:
        InvalidInputError: the file cannot be read, is empty, or a line is not a question; names file and line.
    """
    return _parse(read_lines(path), str(path))


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 text file.

    Raises:
        InvalidInputError: it cannot be read, or is not UTF-8.
    """
    try:
        # Not splitlines: a JSON string may hold line separators other than a newline.
        return Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InvalidInputError(f"cannot read {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not UTF-8 text: {error}; convert it first") from error


def select(questions: Sequence[Question], *, limit: int | None = None, first_turn: bool = False) -> list[Question]:
    """The first `limit` questions of each category, with all their turns or only the first.

    Raises:
        InvalidInputError: `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit={limit}: expected at least 1 question per category")
    taken: Counter[str] = Counter()
    selected = []
    for question in questions:
        taken[question.category] += 1
        if limit is None or taken[question.category] <= limit:
            selected.append(replace(question, turns=question.turns[:1]) if first_turn else question)
    return selected


def by_turns_of_categories(questions: Iterable[Question]) -> list[Question]:
    """The same questions, one of each category in turn, so that any first few are mixed."""
    taken: Counter[str] = Counter()
    ranked = []
    for question in questions:
        ranked.append((taken[question.category], question))
        taken[question.category] += 1
    return [question for _, question in sorted(ranked, key=lambda pair: pair[0])]


def parse_object(line: str, where: str) -> dict[str, Any]:
    """The JSON object in a line; `where` names it in a refusal.

    Raises:
        InvalidInputError: it is no JSON object.
    """
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{where}: expected a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where}: got {line.strip()[:60]!r}, expected a JSON object")
    return value


def _parse(lines: Sequence[str], source: str) -> list[Question]:
    questions: list[Question] = []
    seen: dict[int | str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        question = _question(parse_object(line, f"{source}:{number}"), len(questions), f"{source}:{number}")
        if question.question_id in seen:
            raise InvalidInputError(
                f"{source}:{number}: question_id {question.question_id!r} is that of line {seen[question.question_id]} "
                "too: expected each once"
            )
        seen[question.question_id] = number
        questions.append(question)
    if not questions:
        raise InvalidInputError(f"{source} has no questions: expected one JSON object per line")
    return questions


def _question(record: dict[str, Any], place: int, where: str) -> Question:
    for key in ("question_id", "category", "turns"):
        if key not in record:
            raise InvalidInputError(f"{where}: no {key!r}: expected the keys question_id, category and turns")
    question_id, category, turns = record["question_id"], record["category"], record["turns"]
    if isinstance(question_id, bool) or not isinstance(question_id, int | str):
        raise InvalidInputError(f"{where}: question_id is {question_id!r}: expected a number or text")
    if not isinstance(category, str) or not category:
        raise InvalidInputError(f"{where}: category is {category!r}: expected text")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise InvalidInputError(f"{where}: turns is {str(turns)[:60]}: expected a list of one or more texts")
    return Question(place, question_id, category, tuple(turns))
