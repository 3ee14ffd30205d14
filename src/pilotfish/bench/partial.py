"""Results so far, on disk: a long measurement that is killed goes on where it stopped.

Owns the file: a header with what the figures depend on, then one line per request, repetition and side. A last line
that was cut short is dropped and measured again. Knows not what the figures mean.
"""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from pilotfish.bench.measure import Run
from pilotfish.bench.oracle import Hindsight
from pilotfish.bench.questions import parse_object
from pilotfish.errors import InvalidInputError

Result: TypeAlias = Run | Hindsight
_KINDS: dict[str, type[Run] | type[Hindsight]] = {"run": Run, "hindsight": Hindsight}


class Key(NamedTuple):
    """What a line is the result of; turns and repetitions count from 0."""

    temperature: float
    repeat: int
    question_id: int | str
    turn: int
    side: str


class PartialResults:
    """Results by key, kept in memory, and in a file where one is given.

    Args:
        path: JSONL, made if it is missing; `None` keeps nothing.
        header: whatever the figures depend on; a file with another header is refused.

    Raises:
        InvalidInputError: the file cannot be used: what is wrong, and in which line.
    """

    def __init__(self, path: str | Path | None, header: dict[str, Any]) -> None:
        self._results: dict[Key, Result] = {}
        self._file = None
        if path is None:
            return
        path = Path(path)
        header = json.loads(json.dumps(header))
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            self._read(whole.decode("utf-8"), str(path), header)
            self._file = path.open("ab")
            self._file.truncate(len(whole))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"cannot use {path} for partial results: {error}") from error
        if not whole:
            self._append({"header": header})

    def __enter__(self) -> "PartialResults":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: Key) -> Result | None:
        """The result of that key, if it is known."""
        return self._results.get(key)

    def add(self, key: Key, result: Result) -> None:
        """Notes a result; it is on disk when this returns."""
        self._results[key] = result
        (kind,) = (name for name, kind in _KINDS.items() if isinstance(result, kind))
        self._append({**key._asdict(), kind: result.as_dict()})

    def _append(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self, text: str, name: str, header: dict[str, Any]) -> None:
        for number, line in enumerate(text.split("\n")[:-1], 1):
            record = parse_object(line, f"{name}:{number}")
            if number == 1:
                _require_same(record.get("header"), header, name)
                continue
            try:
                key = Key(**{field: record[field] for field in Key._fields})
                (kind,) = _KINDS.keys() & record.keys()
                self._results[key] = _KINDS[kind].from_dict(record[kind])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise InvalidInputError(f"{name}:{number}: not a result of this command: {error!r}") from error


def _require_same(found: Any, header: dict[str, Any], name: str) -> None:
    if not isinstance(found, dict):
        raise InvalidInputError(f"{name}:1: expected the header of partial results; give another file")
    for key in sorted({*found, *header}):
        if found.get(key) != header.get(key):
            raise InvalidInputError(
                f"{name} holds results with {key}={found.get(key)!r}, now it is {header.get(key)!r}: "
                "repeat the command that began it, or give another file"
            )
