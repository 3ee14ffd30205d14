"""Checkpoints of a training run, and its log: what is needed to go on as if nothing had happened.

Owns the files. A checkpoint is one file that appears whole or not at all, with weights, optimizer, random state, the
position in the data and what the run has found so far. The log has a line per step and measurement; a resumed run cuts
it back to its checkpoint, so that the curve in it is that of a run that was never stopped.

    checkpoints/step-00000100.pt    the latest two are kept
    best.pt                         the trained weights of the best measurement
    run.json                        what the run was told, and by whom
    log.jsonl
"""

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from pilotfish.errors import DataSetError, TrainingError
from pilotfish.train.disk import remove_partial, write_whole
from pilotfish.train.packs import Position

DIRECTORY, BEST, RUN, LOG = "checkpoints", "best.pt", "run.json", "log.jsonl"
KEPT = 2


@dataclass(slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: optimizer steps done.
        position: of the next pack.
        seconds: of training so far, measurements included.
        tokens: rows trained on so far.
        best_speedup, best_step: of the best measurement; 0 before the first.
        worse: measurements since then.
        ended: why the run is over; `None` while it is not.
    """

    step: int = 0
    position: Position = field(default_factory=Position)
    seconds: float = 0.0
    tokens: int = 0
    best_speedup: float = 0.0
    best_step: int = 0
    worse: int = 0
    ended: str | None = None

    def as_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "position": [self.position.epoch, self.position.pack]}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Progress":
        return cls(**{**values, "position": Position(*values["position"])})


class RunDirectory:
    """The files of a run.

    Args:
        path: made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / RUN).is_file()

    def begin(self, values: Mapping[str, Any]) -> None:
        """Notes what the run is told.

        Raises:
            DataSetError: the disk is full.
        """
        (self.path / DIRECTORY).mkdir(parents=True, exist_ok=True)
        write_whole(self.path / RUN, json.dumps(values, indent=2).encode() + b"\n")

    def told(self) -> dict[str, Any]:
        """What the run was told.

        Raises:
            TrainingError: the record is damaged.
        """
        try:
            values: dict[str, Any] = json.loads((self.path / RUN).read_text(encoding="utf-8"))
        except ValueError as error:
            raise TrainingError(f"{self.path / RUN} is damaged ({error}): train in another directory") from None
        return values

    def save(self, progress: Progress, trained: Mapping[str, Tensor], optimizer: Mapping[str, Any]) -> None:
        """Writes a checkpoint and removes all but the latest ones.

        Raises:
            DataSetError: the disk is full; earlier checkpoints are kept.
        """
        state = {
            "progress": progress.as_dict(),
            "trained": {name: tensor.detach().cpu() for name, tensor in trained.items()},
            "optimizer": dict(optimizer),
            "random": torch.get_rng_state(),
        }
        directory = self.path / DIRECTORY
        write_whole(directory / f"step-{progress.step:08d}.pt", _serialised(state))
        for old in sorted(directory.glob("step-*.pt"))[:-KEPT]:
            old.unlink()

    def latest(self) -> dict[str, Any] | None:
        """The latest checkpoint, its random state put back; `None` where there is none.

        Raises:
            TrainingError: it is damaged.
        """
        remove_partial(self.path / DIRECTORY)
        found = sorted((self.path / DIRECTORY).glob("step-*.pt"))
        if not found:
            return None
        state = _loaded(found[-1])
        torch.set_rng_state(state["random"])
        return state

    def save_best(self, step: int, trained: Mapping[str, Tensor]) -> None:
        """Keeps the trained weights as the best so far.

        Raises:
            DataSetError: the disk is full; the earlier best is kept.
        """
        state = {"step": step, "trained": {name: tensor.detach().cpu() for name, tensor in trained.items()}}
        write_whole(self.path / BEST, _serialised(state))

    def best(self) -> dict[str, Tensor]:
        """The best trained weights.

        Raises:
            TrainingError: the file is damaged.
        """
        trained: dict[str, Tensor] = _loaded(self.path / BEST)["trained"]
        return trained

    def log(self, record: Mapping[str, Any]) -> None:
        """Adds a line to the log.

        Raises:
            DataSetError: the disk is full.
        """
        with told_of_full_disk(self.path / LOG), (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The log's lines; one that a killed process left half written is not among them."""
        path = self.path / LOG
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def cut_log(self, step: int) -> None:
        """Drops what the log says of steps after `step`."""
        kept = [record for record in self.records() if record["step"] <= step]
        write_whole(self.path / LOG, b"".join(json.dumps(record).encode() + b"\n" for record in kept))


@contextmanager
def told_of_full_disk(path: Path) -> Iterator[None]:
    """Says of a failed writing what was kept and what to do.

    Raises:
        DataSetError: something in the block could not be written.
    """
    try:
        yield
    except OSError as error:
        raise DataSetError(
            f"{path} cannot be written ({error.strerror or error}): finished checkpoints are kept; make room and go on "
            "with --resume"
        ) from error


def _serialised(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def _loaded(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (RuntimeError, OSError, EOFError, ValueError, UnpicklingError) as error:
        raise TrainingError(
            f"{path} cannot be read ({' '.join(str(error).split())[:80]}): remove it to go on from the one before"
        ) from None
    return state
