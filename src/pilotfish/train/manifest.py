"""`manifest.json` of a data set: who made it, from what, which shards count. Owns its form; `dataset.py` explains it.

Everything in it but `origin` is a function of the model, the settings and the number of shards.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pilotfish.errors import DataSetError
from pilotfish.models.loading import Model
from pilotfish.train.disk import write_whole
from pilotfish.train.hidden import probe, same_probe
from pilotfish.train.settings import DataSettings

FORMAT = 1
MANIFEST = "manifest.json"
JOINED = "joined"
"""In the origin of a set that `join.py` made of others: where its parts came from."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The target that made a data set.

    Attributes:
        name: as the caller said it.
        fingerprint: of its files.
        probe: of what it computes, see `hidden.probe`.
        weights: how the executor stores matrices.
        exact: the executor's rows do not depend on what else is in a pass; then the data can be made again anywhere.
        layers, hidden_size, vocab_size: its shape.
    """

    name: str
    fingerprint: str
    probe: tuple[float, ...]
    weights: str
    exact: bool
    layers: int
    hidden_size: int
    vocab_size: int

    @classmethod
    def of(cls, model: Model, weights: str) -> "ModelFacts":
        """The facts of a loaded model."""
        config = model.executor.config
        return cls(
            name=model.files.name,
            fingerprint=model.files.fingerprint,
            probe=probe(model.executor),
            weights=weights,
            exact=model.executor.exact,
            layers=len(config.layers),
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """What is in a shard, or in all of them.

    Attributes:
        conversations: those in it.
        dropped: conversations that came to nothing: no usable prompt, or one too long.
        new_prompts: opening prompts that no earlier shard has.
        tokens: template, user turns and answers.
        answers: turns of the target.
        answer_tokens: tokens it chose.
        ended: answers that ended by themselves.
    """

    conversations: int = 0
    dropped: int = 0
    new_prompts: int = 0
    tokens: int = 0
    answers: int = 0
    answer_tokens: int = 0
    ended: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def ended_share(self) -> float:
        """Share of end-of-text: answers that ended by themselves / answers."""
        return self.ended / self.answers if self.answers else 0.0


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One finished shard: its file with size and checksum, its first conversation's number, and its counts."""

    file: str
    sha256: str
    size: int
    first: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class Manifest:
    """A data set's manifest.

    Attributes:
        settings: in a joined set those of its first part; the parts' own are in the origin.
        origin: command, commit, versions, hardware and date of its beginning.
    """

    model: ModelFacts
    settings: DataSettings
    origin: Mapping[str, Any]
    shards: tuple[ShardEntry, ...] = field(default=())

    @property
    def totals(self) -> Counts:
        return sum((shard.counts for shard in self.shards), Counts())

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Layer boundaries whose states are stored."""
        return self.settings.boundaries

    @property
    def held_out_share(self) -> float:
        return self.settings.held_out_share

    def with_shard(self, entry: ShardEntry) -> "Manifest":
        return replace(self, shards=(*self.shards, entry))

    def write(self, directory: Path) -> None:
        """Replaces the manifest of a directory as a whole.

        Raises:
            DataSetError: the disk is full.
        """
        totals = self.totals
        values = {
            "format": FORMAT,
            "model": asdict(self.model),
            "settings": self.settings.as_dict(),
            "settings_checksum": self.settings.checksum,
            "totals": {**asdict(totals), "ended_share": round(totals.ended_share, 4)},
            "origin": dict(self.origin),
            "shards": [asdict(shard) for shard in self.shards],
        }
        write_whole(directory / MANIFEST, (json.dumps(values, indent=1) + "\n").encode())

    def require_same(self, directory: Path, model: ModelFacts, settings: DataSettings) -> None:
        """Refuses to go on with a set that was begun otherwise.

        Raises:
            DataSetError: names the first thing that differs.
        """
        if JOINED in self.origin:
            names = ", ".join(part["directory"] for part in self.origin[JOINED])
            raise DataSetError(
                f"{directory} is joined of others and does not grow by itself: add to one of {names}, and join again"
            )
        for name in ("fingerprint", "weights", "exact"):
            theirs, ours = getattr(self.model, name), getattr(model, name)
            if theirs != ours:
                raise DataSetError(
                    f"{directory} was begun with {self.model.name}, whose {name} is {theirs}; {model.name}'s is "
                    f"{ours}: go on with the same model, or begin another directory"
                )
        if not same_probe(self.model.probe, model.probe):
            raise DataSetError(
                f"{directory} was begun with {self.model.name}, which computes something else than {model.name} does: "
                "the weights differ; go on with the same model, or begin another directory"
            )
        difference = self.settings.difference(settings)
        if difference is not None:
            raise DataSetError(
                f"{directory} was begun with other settings: {difference}; go on with the same, or begin another "
                "directory"
            )


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a data set.

    Raises:
        DataSetError: there is none, it cannot be read, or it is of another version.
    """
    path = directory / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataSetError(
            f"{directory} is no data set: expected {MANIFEST} in it; make one with `pilotfish train data`"
        ) from None
    except (OSError, ValueError) as error:
        raise DataSetError(f"{path} cannot be read: {error}") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT:
        raise DataSetError(f"{path}: format {found!r}, expected {FORMAT}: use the version of pilotfish that wrote it")
    try:
        return Manifest(
            ModelFacts(**{**values["model"], "probe": tuple(values["model"]["probe"])}),
            DataSettings.from_dict(values["settings"]),
            values["origin"],
            tuple(_shards(values["shards"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataSetError(f"{path} is damaged ({error}): make the data again in another directory") from None


def _shards(values: Sequence[Mapping[str, Any]]) -> list[ShardEntry]:
    return [ShardEntry(**{**value, "counts": Counts(**value["counts"])}) for value in values]
