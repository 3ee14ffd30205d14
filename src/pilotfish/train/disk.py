"""Files of a data set that appear whole or not at all, and what a full disk does.

Owns the order of write, sync and rename. Knows no format.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pilotfish.errors import DataSetError

TEMPORARY = ".partial"
"""Suffix of a file that is being written; what a killed process left of it is removed by the next."""
RESERVE = 256 * 2**20
"""Bytes to leave free on a disk."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is whole, and on the disk, from the moment it bears its name.

    Raises:
        DataSetError: the disk is full; nothing of the new file remains.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise DataSetError(
                f"no space left for {path} ({len(content):,} bytes): what was finished is kept; make room and give the "
                "same command again"
            ) from error
        raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partial(directory: Path) -> None:
    """Removes what a killed process left half written."""
    for path in directory.glob(f"*{TEMPORARY}"):
        path.unlink()


def require_room(directory: Path, size: float, advice: str) -> None:
    """Refuses to start what the disk cannot hold.

    Args:
        size: bytes that are still to be written, about.
        advice: what to do instead.

    Raises:
        DataSetError: says how much is needed and how much is free.
    """
    free = shutil.disk_usage(directory).free
    if size + RESERVE > free:
        raise DataSetError(
            f"{directory}: about {size / 1e9:.1f} GB are still to be written and {free / 1e9:.1f} GB are free: {advice}"
        )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds a directory against a second writer; the system lets go of it when this process ends, however it ends.

    Raises:
        DataSetError: another process holds it.
    """
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataSetError(f"{directory} is being written by another process: wait for it, or end it") from None
        yield
