"""The user's cache: where it lies, checksums that are not computed twice, directories that appear whole or not at all.

Owns the only look at the environment in this room. Knows no model and no file format.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilotfish.errors import ModelError


def cache_dir() -> Path:
    """`$PILOTFISH_CACHE`, else `$XDG_CACHE_HOME/pilotfish`, else `~/.cache/pilotfish`. Not created here."""
    if own := os.environ.get("PILOTFISH_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "pilotfish"
    return Path.home() / ".cache" / "pilotfish"


def sha256_of(path: Path) -> str:
    """The checksum of a file, remembered in the cache as long as its size and modification time stay the same."""
    path = path.resolve()
    status = path.stat()
    stamp = {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    note = cache_dir() / "checksums" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        known = json.loads(note.read_text())
        if isinstance(known, dict) and {**known, "sha256": None} == {**stamp, "sha256": None}:
            return str(known["sha256"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        write_atomically(note, json.dumps({**stamp, "sha256": digest}))
    return digest


def write_atomically(path: Path, text: str) -> None:
    """Writes a small text file so that nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A temporary directory that becomes `final` when the block ends well and vanishes when it does not.

    Whoever comes second finds the first one's result in place; its own is dropped.

    Raises:
        ModelError: the cache cannot be written.
    """
    temporary = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=".partial-"))
        yield temporary
        try:
            os.rename(temporary, final)
        except OSError:
            if not final.is_dir():
                raise
    except OSError as error:
        raise ModelError(
            f"the cache {final.parent} cannot be written: {error.strerror or error}; "
            "make room, or set PILOTFISH_CACHE to a directory that can be written"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
