"""A pool of past outputs that later requests may copy from: bounded, named, and kept in a file if asked.

Owns the texts, their index and the file. A pool is off by default, because what one user was answered would then show
in how fast another is; tenants who must not see each other use pools of different names. Knows no drafts.
"""

import hashlib
import json
import logging
import os
import re
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from pilotfish.drafters.suffix_index import SEPARATOR, SuffixIndex, suffix_index
from pilotfish.errors import CorruptPoolError, SpeculativeConfigError

logger = logging.getLogger(__name__)

MAGIC = b"pilotfish suffix pool 1\n"
DEFAULT_POOL_TOKENS = 65_536
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class SuffixPool:
    """The latest outputs, at most `max_tokens` of them together.

    Args:
        name: which pool; letters, digits, dots, dashes and underscores.
        max_tokens: tokens kept; the oldest outputs leave first. Memory is about 150 bytes per token.
        path: a file that the pool is read from and, after each output, written to (as a whole, then moved into place,
            so that a reader never sees half of it). `None` keeps it in memory. Of two processes that share a file
            the last to write wins.
        fingerprint: of the target; a pool of another model's token ids is refused.

    Raises:
        SpeculativeConfigError: the name or the size cannot be used.
        CorruptPoolError: the file is damaged, of another version, or belongs to another pool or model.
    """

    def __init__(
        self,
        name: str,
        max_tokens: int = DEFAULT_POOL_TOKENS,
        *,
        path: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise SpeculativeConfigError(
                f"suffix_pool={name!r}: expected a name of letters, digits, '.', '-' and '_', at most 100 long"
            )
        if max_tokens < 1:
            raise SpeculativeConfigError(f"a pool of {max_tokens} tokens: expected at least 1")
        self.name = name
        self._max_tokens = max_tokens
        self._path = path
        self._fingerprint = fingerprint
        self._texts: deque[array[int]] = deque()
        self._tokens = 0
        self.index: SuffixIndex = suffix_index()
        if path is not None and path.exists():
            for text in self._read(path):
                self._append(text)

    def __len__(self) -> int:
        """Tokens kept."""
        return self._tokens

    def add(self, output: Sequence[int]) -> None:
        """Takes in one finished output; of a longer one than the pool holds, the end."""
        if not output:
            return
        self._append(array("i", output[-self._max_tokens :]))
        if self._path is None:
            return
        try:
            self._write(self._path)
        except OSError as error:  # the outputs are complete; only what a restart would have known is lost
            logger.warning("suffix pool %s was not written to %s: %s", self.name, self._path, error)

    def _append(self, text: "array[int]") -> None:
        self._texts.append(text)
        self._tokens += len(text)
        if self._tokens > self._max_tokens:
            # An automaton does not forget. It is built anew from the latest three quarters, so that a token is indexed
            # a bounded number of times.
            while self._tokens > max(self._max_tokens * 3 // 4, len(text)):
                self._tokens -= len(self._texts.popleft())
            self.index = suffix_index()
            for kept in self._texts:
                self._extend(kept)
        else:
            self._extend(text)

    def _extend(self, text: "array[int]") -> None:
        self.index.extend(text.tolist())
        self.index.extend([SEPARATOR])

    def _header(self) -> dict[str, object]:
        return {"pool": self.name, "model": self._fingerprint, "lengths": [len(text) for text in self._texts]}

    def _write(self, path: Path) -> None:
        header = json.dumps(self._header()).encode() + b"\n"
        body = b"".join(_little_endian(text).tobytes() for text in self._texts)
        digest = hashlib.sha256(header + body).hexdigest().encode() + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_bytes(MAGIC + digest + header + body)
        fresh.replace(path)

    def _read(self, path: Path) -> "list[array[int]]":
        content = path.read_bytes()
        if not content.startswith(MAGIC):
            raise CorruptPoolError(
                f"{path}: not a pool of this version: expected it to start with {MAGIC!r}; remove it"
            )
        digest, _, rest = content[len(MAGIC) :].partition(b"\n")
        if hashlib.sha256(rest).hexdigest().encode() != digest:
            raise CorruptPoolError(f"{path}: the checksum does not fit the content: the file is damaged; remove it")
        header, _, body = rest.partition(b"\n")
        values = json.loads(header)
        expected = {**self._header(), "lengths": values["lengths"]}
        if values != expected:
            raise CorruptPoolError(
                f"{path}: holds pool {values['pool']!r} of model {values['model']!r}, expected {self.name!r} of "
                f"{self._fingerprint!r}: use another pool name"
            )
        texts, start = [], 0
        for length in values["lengths"]:
            text = array("i")
            text.frombytes(body[start : start + length * text.itemsize])
            texts.append(_little_endian(text))
            start += length * text.itemsize
        return texts


def _little_endian(text: "array[int]") -> "array[int]":
    """The array as it is stored: swapped on a machine of the other byte order."""
    if sys.byteorder == "little":
        return text
    swapped = array("i", text)
    swapped.byteswap()
    return swapped
