"""Where figures come from: command, commit, versions, hardware. Owns what every report of this room states."""

import shlex
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.models.machine import Machine, versions


def provenance(seed: int) -> dict[str, Any]:
    """Command, commit (`None` outside a checkout of ours), versions, hardware, seed and the time, for JSON."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
        "versions": versions(),
        "hardware": asdict(Machine.here()),
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit the package is run from, with "+changes" where files under version control differ from it."""
    package = Path(pilotfish.__file__).parent
    if package.parent.name != "src":  # installed elsewhere; a repository around it would be somebody else's
        return None
    root = package.parent.parent
    found = _git(root, "rev-parse", "HEAD")
    if found is None:
        return None
    return found + ("+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None
