"""Prompts: read from a user's file, judged, told apart. Owns what makes a prompt usable and when two are the same.

Knows no model; inventing them is `data.py`'s.
"""

import hashlib
import json
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotfish.errors import PromptError

SHORTEST = 8
"""Letters and digits a usable prompt has at least."""
LONGEST_WORD = 40
FEWEST_LETTERS = 0.5
"""Share of letters, digits and spaces a usable prompt has at least."""
REPETITION_FROM, MOST_REPETITION = 120, 0.33
"""From this length on, a text that zlib packs to less than this share says the same over and over."""
SENTENCE_ENDS = ".?!。？！\n"


def prompt_hash(text: str) -> int:
    """First 8 bytes of the sha256 of a prompt, as a signed integer; case and spaces make no difference."""
    plain = " ".join(text.casefold().split())
    return int.from_bytes(hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()[:8], "little", signed=True)


def usable(text: str) -> bool:
    """Whether an invented user turn is worth answering: neither too short, nor noise, nor one phrase over and over."""
    letters = sum(character.isalnum() for character in text)
    if letters < SHORTEST or "\ufffd" in text:
        return False
    if any(unicodedata.category(character) == "Cc" and character not in "\n\t" for character in text):
        return False
    if letters + sum(character.isspace() for character in text) < FEWEST_LETTERS * len(text):
        return False
    if any(len(word) > LONGEST_WORD for word in text.split() if word.isascii()):
        return False
    raw = text.encode()
    return len(raw) < REPETITION_FROM or len(zlib.compress(raw)) >= MOST_REPETITION * len(raw)


def whole_sentences(text: str) -> str:
    """A text that was cut off, up to its last sentence's end; empty if none ended."""
    return text[: max(text.rfind(end) for end in SENTENCE_ENDS) + 1].rstrip()


def prompts_checksum(prompts: Sequence[Sequence[str]]) -> str | None:
    """Equal for equal prompts; `None` for none."""
    return hashlib.sha256(json.dumps(list(map(list, prompts))).encode()).hexdigest() if prompts else None


def read_prompts(path: Path, field: str) -> list[tuple[str, ...]]:
    """A user's prompts, each as its user turns; those that begin as an earlier one does are left out.

    A name ending in `.jsonl` has an object per line, whose `field` is the prompt, or the list of a conversation's user
    turns; any other file is text with a prompt per line.

    Raises:
        PromptError: the file cannot be read, is empty, or a line has no such field; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path}: the prompts cannot be read: {error}") from None
    found: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        turns = _turns(line, field, f"{path}, line {number}") if path.suffix == ".jsonl" else (line.strip(),)
        found.setdefault(prompt_hash(turns[0]), turns)
    if not found:
        raise PromptError(f"{path} has no prompts: expected one per line")
    return list(found.values())


def _turns(line: str, field: str, where: str) -> tuple[str, ...]:
    try:
        values: Any = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{where}: expected a JSON object: {error}") from None
    value = values.get(field) if isinstance(values, dict) else None
    turns = [value] if isinstance(value, str) else value
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        known = ", ".join(values) if isinstance(values, dict) else type(values).__name__
        raise PromptError(f"{where}: expected text, or a list of user turns, in {field!r} (--field); got {known}")
    return tuple(turn.strip() for turn in turns)
