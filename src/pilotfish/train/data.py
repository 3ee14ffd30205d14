"""Makes a data set: batch after batch, shard after shard, until there is enough; goes on where an earlier run stopped.

Owns the order of shard and manifest, so that a process may be killed at any moment: a shard is whole before it is in
the manifest, and what is not in the manifest is made again, the same to the byte. `dataset.py` has the format.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.errors import DataSetError, InvalidInputError
from pilotfish.models.loading import Model
from pilotfish.train.batch import BatchMaker, BatchResult
from pilotfish.train.disk import locked, remove_partial, require_room, write_whole
from pilotfish.train.manifest import MANIFEST, Counts, Manifest, ModelFacts, ShardEntry, read_manifest
from pilotfish.train.plans import Plan, make_plan
from pilotfish.train.prompts import prompt_hash, prompts_checksum
from pilotfish.train.settings import DataSettings
from pilotfish.train.shards import ShardReader, shard_bytes, shard_name

RUNS = "runs.jsonl"
EMPTY_BATCHES = 3
"""After so many batches without a conversation the model is taken to be unable to invent prompts."""
_TOKEN_BYTES = 6
"""Of a token's id and mask, with its part of the rest."""
_ANSWER_FILL = 0.6
"""Mean length of an answer, as a share of the longest, for an estimate before anything is made."""
_OPENING_FILL = 0.5
_TELLING_SECONDS = 10.0
"""Of a run, before its pace says when it will end: inventing the first prompts gives no answer tokens."""


@dataclass(frozen=True, slots=True)
class DataProgress:
    """How far it is.

    Attributes:
        answer_tokens: in finished shards and in the batch under way.
        goal: how many are wanted.
        made: of them, those of this run.
        seconds: of this run.
        shards: finished ones.
    """

    answer_tokens: int
    goal: int
    made: int
    seconds: float
    shards: int

    @property
    def tokens_per_second(self) -> float:
        return self.made / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """`None` in a run's first seconds, which say nothing of its pace."""
        if not self.made or self.seconds < _TELLING_SECONDS:
            return None
        return max(self.goal - self.answer_tokens, 0) / self.tokens_per_second


def make_data(
    model: Model,
    settings: DataSettings,
    directory: Path,
    answer_tokens: int,
    *,
    weights: str = "auto",
    prompts: Sequence[tuple[str, ...]] = (),
    origin: Mapping[str, Any] | None = None,
    on_progress: Callable[[DataProgress], None] = lambda progress: None,
) -> Manifest:
    """Makes a data set, or goes on with one, until it has at least so many answer tokens or prompts are used up.

    Args:
        weights: how the executor stores matrices, for the manifest.
        prompts: the user's, each as its user turns; `settings.prompts` is their checksum.
        origin: command, commit, versions; written when a set is begun.
        on_progress: called after each round.

    Raises:
        DataSetError: the directory holds a set of another model or other settings, is in use or damaged; the disk is
            too small or full; or the model invents nothing usable. Finished shards are kept.
        InvalidInputError: the settings do not fit the model, or the goal is not positive.
    """
    facts = ModelFacts.of(model, weights)
    _check(settings, facts, answer_tokens, prompts)
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        manifest = _begin(directory, facts, settings, origin or {})
        remove_partial(directory)
        run = _Run(model, settings, directory, answer_tokens, prompts, manifest, on_progress)
        run.check_disk()
        return run.finish()


def _check(settings: DataSettings, facts: ModelFacts, goal: int, prompts: Sequence[tuple[str, ...]]) -> None:
    if goal < 1:
        raise InvalidInputError(f"answer_tokens={goal}: expected at least 1")
    outside = [boundary for boundary in settings.boundaries if boundary > facts.layers]
    if outside:
        raise InvalidInputError(
            f"boundaries {outside}: {facts.name} has {facts.layers} layers; expected 0 to {facts.layers}"
        )
    assert settings.prompts == prompts_checksum(prompts), "the settings are of these prompts"


def _begin(directory: Path, facts: ModelFacts, settings: DataSettings, origin: Mapping[str, Any]) -> Manifest:
    if (directory / MANIFEST).exists():
        manifest = read_manifest(directory)
        manifest.require_same(directory, facts, settings)
        return manifest
    manifest = Manifest(facts, settings, origin)
    manifest.write(directory)
    return manifest


class _Run:
    """One run of the generator over a directory that it holds."""

    def __init__(
        self,
        model: Model,
        settings: DataSettings,
        directory: Path,
        goal: int,
        prompts: Sequence[tuple[str, ...]],
        manifest: Manifest,
        on_progress: Callable[[DataProgress], None],
    ) -> None:
        self._maker = BatchMaker(model, settings, self._came)
        self._settings = settings
        self._directory = directory
        self._goal = goal
        self._prompts = prompts
        self._manifest = manifest
        self._on_progress = on_progress
        self._before = manifest.totals.answer_tokens
        self._made = 0
        self._start = time.monotonic()
        self._prompt_tokens = [len(model.tokenizer.encode(turns[0])) for turns in prompts[:64]]
        self._openings = {prompt_hash(turns[0]) for turns in prompts}
        """Nothing that is invented may repeat a prompt of the file, whether it had its turn or not."""
        self._answered: set[int] = set()
        for entry in manifest.shards:
            hashes = ShardReader(directory, entry, verify=False).prompt_hashes.tolist()
            self._openings.update(hashes)
            self._answered.update(hashes)

    def _came(self, tokens: int) -> None:
        self._made += tokens
        self._on_progress(
            DataProgress(
                self._before + self._made,
                self._goal,
                self._made,
                time.monotonic() - self._start,
                len(self._manifest.shards),
            )
        )

    def check_disk(self) -> None:
        """Refuses a set that will not fit, by an estimate from what is there, or from the settings."""
        own, totals = self._settings, self._manifest.totals
        if totals.answer_tokens:
            rows = totals.tokens / totals.answer_tokens
        else:
            invented = own.max_prompt_tokens * _OPENING_FILL
            opening = sum(self._prompt_tokens) / len(self._prompt_tokens) if self._prompt_tokens else invented
            rows = 1 + opening / (own.max_answer_tokens * _ANSWER_FILL)
        per_row = _TOKEN_BYTES + 2 * self._manifest.model.hidden_size * len(own.boundaries)
        goal = self._goal
        if not own.invent:  # prompts may be used up long before the goal
            turns = sum(max(own.max_turns, len(prompt)) for prompt in self._prompts)
            goal = min(goal, turns * own.passes * own.max_answer_tokens)
        size = max(goal - totals.answer_tokens, 0) * rows * per_row
        advice = "choose fewer --boundaries, --hidden recompute, fewer --answer-tokens or another disk"
        require_room(self._directory, size, advice)

    def finish(self) -> Manifest:
        """Makes shards until there is enough."""
        empty = 0
        while self._manifest.totals.answer_tokens < self._goal:
            plans = self._next_plans()
            if not plans:
                break
            started = time.monotonic()
            result = self._maker.make(plans, self._openings)
            self._add(plans[0].number, result, started)
            empty = 0 if result.conversations else empty + 1
            if empty == EMPTY_BATCHES:
                raise DataSetError(
                    f"{EMPTY_BATCHES * self._settings.batch} conversations in a row came to nothing: the model invents "
                    "no usable prompts, or all are too long for max_tokens; give prompts of your own"
                )
        return self._manifest

    def _next_plans(self) -> list[Plan]:
        first = len(self._manifest.shards) * self._settings.batch
        numbers = range(first, first + self._settings.batch)
        plans = [make_plan(self._settings, self._prompts, number) for number in numbers]
        return [plan for plan in plans if plan is not None]

    def _add(self, first: int, result: BatchResult, started: float) -> None:
        """Writes a shard, then the manifest with it."""
        conversations = result.conversations
        hashes = {each.prompt_hash for each in conversations}
        counts = Counts(
            conversations=len(conversations),
            dropped=result.dropped,
            new_prompts=len(hashes - self._answered),
            tokens=sum(len(each.tokens) for each in conversations),
            answers=result.answers,
            answer_tokens=sum(sum(each.loss_mask) for each in conversations),
            ended=result.ended,
        )
        self._answered |= hashes
        content = shard_bytes(conversations, self._settings.boundaries, self._manifest.model.hidden_size)
        name = shard_name(len(self._manifest.shards))
        write_whole(self._directory / name, content)
        entry = ShardEntry(name, hashlib.sha256(content).hexdigest(), len(content), first, counts)
        self._manifest = self._manifest.with_shard(entry)
        self._manifest.write(self._directory)
        self._log(name, counts, time.monotonic() - started)

    def _log(self, shard: str, counts: Counts, seconds: float) -> None:
        """One line of `runs.jsonl`: when and how fast. No part of the data, so it need not survive a crash."""
        line = {
            "shard": shard,
            "answer_tokens": counts.answer_tokens,
            "seconds": round(seconds, 2),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        }
        with suppress(OSError), (self._directory / RUNS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def generation_seconds(directory: Path) -> float:
    """Seconds that the finished shards took, by `runs.jsonl`; a shard made twice counts twice."""
    total = 0.0
    for line in (directory / RUNS).read_text(encoding="utf-8").splitlines():
        try:
            total += json.loads(line)["seconds"]
        except (ValueError, KeyError, TypeError):  # the last words of a process that was killed
            continue
    return total
