"""The end of a training: the best weights as the engine will read them, measured once more, and checked by use.

Owns the check. The drafter is loaded by the engine from its files, answers held-out prompts, and must leave every
answer as it was; the hidden states that the engine gives it are compared with those it was trained on; what was
projected is put beside what was measured. A drafter that fails is not called done. Knows no options of any kind of
student.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from pilotfish.drafters.shipped import write_description
from pilotfish.engine.llm import LLM
from pilotfish.errors import TrainingError
from pilotfish.models.files import ModelFiles
from pilotfish.train.card import write_card
from pilotfish.train.checkpoint import RunDirectory, told_of_full_disk
from pilotfish.train.costs import decode_speed
from pilotfish.train.dataset import DataSet
from pilotfish.train.disk import write_whole
from pilotfish.train.hidden import compute_states
from pilotfish.train.student import Student
from pilotfish.train.trainer import Measurement, Trainer

if TYPE_CHECKING:
    from pilotfish.train.session import Session

ANSWER_TOKENS = 96
"""Tokens of each answer in the check."""
CLOSE = 2e-2
"""Largest relative difference of hidden states that rounding explains, where the executor is not exact."""


@dataclass(frozen=True, slots=True)
class Check:
    """A finished drafter in use, at temperature 0.

    Attributes:
        states_sha256: of the hidden states it was trained on, of one held-out conversation.
        states_identical: the engine gives the same, bit for bit.
        states_difference: the largest, relative to the states' size.
        answers_identical: with and without the drafter the same token ids.
        draft_len: the best by projection, at which it was measured.
        plain_tokens_per_second, tokens_per_second: without and with it.
        tokens_per_round: measured.
        projected_tokens_per_round, projected_speedup: before.
    """

    states_sha256: str
    states_identical: bool
    states_difference: float
    answers_identical: bool
    draft_len: int
    plain_tokens_per_second: float
    tokens_per_second: float
    tokens_per_round: float
    projected_tokens_per_round: float
    projected_speedup: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_second / self.plain_tokens_per_second


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a training.

    Attributes:
        measurement: of the weights as they were written.
        check: `None` where it was left out.
        steps, tokens, seconds: of training.
        ended: why: "steps", "minutes" or "patience".
        best_step: whose weights these are.
        parameters: that were trained.
        file_bytes: of the weights' file.
    """

    measurement: Measurement
    check: Check | None
    steps: int
    tokens: int
    seconds: float
    ended: str
    best_step: int
    parameters: int
    file_bytes: int

    def as_dict(self) -> dict[str, Any]:
        values = {
            name: getattr(self, name)
            for name in ("steps", "tokens", "seconds", "ended", "best_step", "parameters", "file_bytes")
        }
        check = None if self.check is None else {**asdict(self.check), "speedup": self.check.speedup}
        return {**values, "held_out": self.measurement.as_dict(), "check": check}


def finish(
    session: "Session",
    llm: LLM,
    files: ModelFiles,
    trainer: Trainer,
    directory: RunDirectory,
    data: DataSet,
    prompts: Sequence[Sequence[int]],
    source: Mapping[str, Any] | None,
    dtype: torch.dtype,
) -> Outcome:
    """Writes the best weights into the run's directory and checks them.

    Raises:
        TrainingError: the check failed; what was written stays for inspection, without a description.
        DataSetError: the disk is full.
    """
    student, progress = trainer.student, trainer.progress
    best = directory.best()
    student.restore({name: tensor.to(dtype).to(torch.float32) for name, tensor in best.items()})
    with told_of_full_disk(directory.path):
        student.save(directory.path, dtype, None if source is None else dict(source))
    measurement = trainer.measure()
    check = None
    if session.check_prompts:
        check = _check(llm, student, measurement, directory, data, prompts[: session.check_prompts])
    assert progress.ended is not None, "the trainer has run"
    outcome = Outcome(
        measurement,
        check,
        progress.step,
        progress.tokens,
        progress.seconds,
        progress.ended,
        progress.best_step,
        sum(tensor.numel() for tensor in best.values()),
        (directory.path / "model.safetensors").stat().st_size,
    )
    record = {**outcome.as_dict(), "run": directory.told()}
    write_whole(directory.path / "training.json", json.dumps(record, indent=2).encode() + b"\n")
    write_card(directory.path, outcome.as_dict(), directory.told())
    write_description(directory.path, files.fingerprint, student.method)
    return outcome


def _check(
    llm: LLM,
    student: Student,
    measurement: Measurement,
    directory: RunDirectory,
    data: DataSet,
    prompts: Sequence[Sequence[int]],
) -> Check:
    target = llm.engine.target
    boundaries = student.boundaries or (target.config.num_layers,)
    conversation = data.read(data.places("held_out")[0], boundaries)
    trained_on = torch.cat([conversation.hidden[boundary] for boundary in boundaries])
    now = compute_states(target, conversation.tokens.tolist(), boundaries)
    served = torch.cat([now[boundary] for boundary in boundaries])
    scale = max(float(trained_on.float().abs().max()), 1e-6)
    difference = float((trained_on.float() - served.float()).abs().max()) / scale
    identical = torch.equal(trained_on, served)
    if difference > CLOSE:
        raise TrainingError(
            f"the engine's hidden states differ from those of the data by {difference:.2g} of their size: the drafter "
            "learned from other states than it will see. Use the weights and the executor that made the data"
        )
    projection = measurement.greedy
    plain, expected = decode_speed(llm, prompts, max_tokens=ANSWER_TOKENS)
    config = {"method": student.method, "model": str(directory.path), "num_speculative_tokens": projection.draft_len}
    speed, answers = decode_speed(llm.with_speculation(config), prompts, max_tokens=ANSWER_TOKENS)
    if target.exact and answers != expected:
        raise TrainingError("answers with the drafter differ from those without it: this is a defect, report it")
    return Check(
        hashlib.sha256(trained_on.numpy().tobytes()).hexdigest(),
        identical,
        difference,
        answers == expected,
        projection.draft_len,
        plain.tokens_per_second,
        speed.tokens_per_second,
        speed.tokens_per_round,
        projection.tokens_per_round[projection.draft_len - 1],
        projection.speedup,
    )
