"""A training data set on disk: the format, and how it is read while it is finished or still growing.

Owns the format's description and its reading; `manifest.py` and `shards.py` write it. Knows no loss, no trainer and no
way in which the conversations came about.

A data set is a directory:

- `manifest.json`, replaced as a whole after each shard (see `Manifest`): the format's version, the model's fingerprint,
  a probe of what it computes, its layers and width, how its weights were stored, all settings with their checksum, the
  command and the versions, the share held out, the stored boundaries, the shards in order, each with file name, sha256
  and counts, and the sums of these counts. A shard counts once it is in there.
- `shard-00000.safetensors` and so on, written under another name, synced and renamed; whole from the moment they exist.
- `runs.jsonl`: for each run of the generator where, when and how fast; not part of the data.
- `lock`: held by a generator at work.

A shard has conversations number `first` to `first + conversations - 1`, less those that were dropped, one after the
other without padding:

| tensor | dtype, shape | meaning |
|---|---|---|
| `tokens` | int32 `[token]` | token ids as the target reads them: template, user turns, answers with their end |
| `loss_mask` | bool `[token]` | true exactly at the tokens the target chose as answers, its end-of-sequence included |
| `starts` | int64 `[conversation + 1]` | where each conversation begins in `tokens`; the last entry is their length |
| `number` | int64 `[conversation]` | the conversation's number in the data set it was made in, increasing |
| `prompt_hash` | int64 `[conversation]` | first 8 bytes of the sha256 of the opening prompt; decides the split |
| `temperature` | float32 `[conversation]` | at which its answers were chosen |
| `turns` | int32 `[conversation]` | answers in it |
| `ended` | bool `[conversation]` | the last answer ended by itself, not by its length |
| `hidden.B` | float16 `[token - conversation, hidden]` | one for each stored layer boundary B (`PassOutput.hidden`) |

A conversation of T tokens has T - 1 rows of hidden states, at tokens 0 to T - 2: the last token was chosen but never
read, and nothing comes after it. Row j is the state *at* token j, so the law at boundary `layers` (the final norm and
the LM head applied to it) is that of token j + 1; rows of conversation c begin at `starts[c] - c`. An EAGLE head reads
row j with the embedding of token j + 1 and predicts token j + 2.

Values beyond float16's range are clamped to it. Boundaries that are not stored are computed on the way, if the reader
was given the target: on an exact executor they are the same to the last bit, which is what `--hidden recompute` means.

A conversation is held out if its opening prompt's hash, as a fraction of 2**64, is below the manifest's
`held_out_share`: the split depends on nothing else, so it stays as the set grows, and two sets of one target agree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float16, Int64
from torch import Tensor

from pilotfish.errors import DataSetError
from pilotfish.models.base import Executor
from pilotfish.train.hidden import compute_states, probe, same_probe
from pilotfish.train.manifest import Manifest, read_manifest
from pilotfish.train.shards import ShardReader

Split: TypeAlias = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation with what the target thought in it.

    Attributes:
        number: in the data set it was made in.
        tokens: ids, as the target read them.
        loss_mask: true at the target's own tokens.
        temperature: at which they were chosen.
        hidden: by layer boundary, states at all tokens but the last.
    """

    number: int
    tokens: Int64[Tensor, " token"]
    loss_mask: Bool[Tensor, " token"]
    temperature: float
    hidden: dict[int, Float16[Tensor, "row hidden"]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation lies: shard and place in it; and how long it is, for a reader that makes batches."""

    shard: int
    place: int
    tokens: int
    answer_tokens: int


class DataSet:
    """Reads a data set; conversations by place, in any order.

    Args:
        directory: where `manifest.json` is.
        executor: the target, if boundaries that are not stored will be asked for.
        fingerprint: of the target the reader means to use the data for; `None` asks nothing.
        verify: compare each shard's checksum when it is first read.

    Raises:
        DataSetError: there is no data set, it is damaged, of another version, or made by another model.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        executor: Executor | None = None,
        fingerprint: str | None = None,
        verify: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.manifest: Manifest = read_manifest(self.directory)
        if fingerprint is not None and fingerprint != self.manifest.model.fingerprint:
            raise DataSetError(
                f"{self.directory} was made by {self.manifest.model.name} with checksum "
                f"{self.manifest.model.fingerprint[:16]}, and this target's is {fingerprint[:16]}: a drafter learns "
                "from its own target's text; make data with it, or name the model that made these"
            )
        if executor is not None and not same_probe(self.manifest.model.probe, probe(executor)):
            raise DataSetError(
                f"{self.directory} was made by {self.manifest.model.name}, and the target given computes something "
                "else: its weights differ; name the model that made the data"
            )
        self._executor = executor
        self._verify = verify
        self._readers: dict[int, ShardReader] = {}
        self._places: dict[Split, list[Place]] = {split: [] for split in SPLITS}
        self._indexed = 0

    def places(self, split: Split) -> Sequence[Place]:
        """All conversations of a split, in the order of their numbers.

        Raises:
            DataSetError: a shard is missing or damaged; names it.
        """
        for shard in range(self._indexed, len(self.manifest.shards)):
            reader = self._reader(shard)
            for place, held_out in enumerate(held_out_mask(reader.prompt_hashes, self.manifest.held_out_share)):
                start, stop = reader.bounds(place)
                own = Place(shard, place, stop - start, int(reader.loss_mask[start:stop].sum()))
                self._places["held_out" if held_out else "train"].append(own)
            self._indexed = shard + 1
        return self._places[split]

    def read(self, place: Place, boundaries: Sequence[int] = ()) -> Conversation:
        """One conversation with the hidden states at these layer boundaries.

        Raises:
            DataSetError: a boundary is not stored and there is no executor to compute it, the model has no such
                boundary, or the shard is damaged.
        """
        self.require_boundaries(boundaries)
        reader = self._reader(place.shard)
        start, stop = reader.bounds(place.place)
        tokens = reader.tokens[start:stop].to(torch.int64)
        stored = [boundary for boundary in boundaries if boundary in self.manifest.boundaries]
        missing = [boundary for boundary in boundaries if boundary not in self.manifest.boundaries]
        hidden = {boundary: reader.hidden(boundary, place.place) for boundary in stored}
        if missing:
            assert self._executor is not None, "asked above"
            hidden |= compute_states(self._executor, tokens.tolist(), missing)
        return Conversation(
            reader.number(place.place), tokens, reader.loss_mask[start:stop], reader.temperature(place.place), hidden
        )

    def conversations(self, split: Split, boundaries: Sequence[int] = ()) -> Iterator[Conversation]:
        """All conversations of a split in the order of their numbers."""
        return (self.read(place, boundaries) for place in self.places(split))

    def require_boundaries(self, boundaries: Sequence[int]) -> None:
        """Refuses boundaries that cannot be had.

        Raises:
            DataSetError: names them, and those that are stored.
        """
        layers = self.manifest.model.layers
        outside = [boundary for boundary in boundaries if not 0 <= boundary <= layers]
        if outside:
            raise DataSetError(f"boundaries {outside}: the model has {layers} layers; expected 0 to {layers}")
        missing = [boundary for boundary in boundaries if boundary not in self.manifest.boundaries]
        if missing and self._executor is None:
            raise DataSetError(
                f"{self.directory} has no hidden states of boundaries {missing}; stored: "
                f"{list(self.manifest.boundaries) or 'none'}: give the target to compute them, or make the data with "
                "--boundaries"
            )

    def _reader(self, shard: int) -> ShardReader:
        if shard not in self._readers:
            self._readers[shard] = ShardReader(self.directory, self.manifest.shards[shard], verify=self._verify)
        return self._readers[shard]


def held_out_mask(prompt_hashes: Int64[Tensor, " conversation"], share: float) -> list[bool]:
    """Which conversations are held out, by the hash of their prompt alone."""
    fractions = prompt_hashes.numpy().view(np.uint64) / 2.0**64
    held_out: list[bool] = (fractions < share).tolist()
    return held_out
