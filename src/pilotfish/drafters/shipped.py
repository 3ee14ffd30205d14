"""Drafters that come with the package, found by the target's checksum.

Owns the directory `shipped/` beside this file: each directory in it is a drafter, with a file `drafter.json` that says
`{"targets": [checksum, ...], "method": ..., other fields of its configuration}`; `model` is the directory itself for
the methods that need one. Sizes are bounded by a test. Knows no engine: `auto` adds what is found here to its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotfish.errors import CorruptModelError

DIRECTORY = Path(__file__).parent / "shipped"
DESCRIPTION = "drafter.json"
WITHOUT_MODEL = ("ngram", "suffix", "recycle")


def shipped_drafters(fingerprint: str, directory: Path | None = None) -> tuple[Mapping[str, Any], ...]:
    """The configurations of the drafters made for a target, in the order of their directories' names.

    Args:
        fingerprint: the target's `ModelFiles.fingerprint`.
        directory: where to look; the package's own by default.

    Raises:
        CorruptModelError: a description is damaged.
    """
    found = []
    for path in sorted((directory or DIRECTORY).glob(f"*/{DESCRIPTION}")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            targets, method = values.pop("targets"), values["method"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptModelError(f"{path}: expected an object with 'targets' and 'method' ({error!r})") from None
        if fingerprint in targets:
            found.append(values if method in WITHOUT_MODEL else {**values, "model": str(path.parent)})
    return tuple(found)


def write_description(directory: Path, fingerprint: str, method: str, **settings: Any) -> None:
    """Makes a drafter's directory one that can be shipped as it is.

    Raises:
        OSError: it cannot be written.
    """
    values = {"targets": [fingerprint], "method": method, **settings}
    (directory / DESCRIPTION).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
