"""What a training run is told: one frozen record, complete when built, the same for all kinds of drafters.

Owns the options, their ranges and their defaults, and the two schedules that follow from them: of the learning rate and
of the loss. Knows no model and no data.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, cast

from pilotfish.errors import InvalidInputError

Loss: TypeAlias = Literal["ce", "tv", "nla", "lk"]
LOSSES: tuple[Loss, ...] = ("ce", "tv", "nla", "lk")
MAY_CHANGE = ("steps", "epochs", "minutes", "patience", "checkpoint_every")
"""Options that a resumed run may give anew; all others decide about the curve."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train.

    Attributes:
        steps: of the optimizer; `None` for what `epochs` makes.
        epochs: passes over the training split.
        minutes: ends the run cleanly after so long; `None` sets no limit.
        batch_tokens: rows of one pack of conversations, about; the longest conversation's at least.
        packs_per_step: packs whose gradients are added up before a step, all processes together.
        max_length: of a longer conversation the first tokens are used.
        learning_rate: at the end of the warm-up; falls along a cosine to a tenth of it at the last step.
        warmup_steps: of the learning rate, from 0.
        weight_decay: AdamW's, on matrices only.
        clip: the gradient's norm at most.
        loss: "ce" cross-entropy to the target's law, "tv" total variation, "nla" minus the logarithm of acceptance,
            "lk" the hybrid of Kullback-Leibler divergence and total variation.
        loss_warmup: share of the steps that use cross-entropy before `loss`.
        depths: unrolled steps of a head; others learn from one.
        depth_weight: each depth counts so many times the one before.
        law_temperature: at which the target's law is imitated; below 1 it learns more of the likeliest token.
        precision: of Accelerate's mixed precision: "no", "bf16" or "fp16".
        seed: of the order of the data and of new weights.
        evaluate_every: steps between measurements on held-out text.
        evaluate_tokens: answer tokens of held-out text used.
        evaluate_depths: draft lengths reported, from 1.
        patience: ends the run after so many measurements without a better projected speedup; `None` never does.
        checkpoint_every: steps.

    Raises:
        InvalidInputError: a value is out of range; names it.
    """

    steps: int | None = None
    epochs: float = 2.0
    minutes: float | None = None
    batch_tokens: int = 512
    packs_per_step: int = 1
    max_length: int = 1024
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    loss: str = "lk"
    loss_warmup: float = 0.5
    depths: int = 3
    depth_weight: float = 0.8
    law_temperature: float = 1.0
    precision: str = "no"
    seed: int = 0
    evaluate_every: int = 100
    evaluate_tokens: int = 10_000
    evaluate_depths: int = 6
    patience: int | None = 10
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        positive = ("batch_tokens", "packs_per_step", "depths", "evaluate_every", "evaluate_tokens", "evaluate_depths")
        for name in (
            *positive,
            "checkpoint_every",
            "epochs",
            "learning_rate",
            "clip",
            "depth_weight",
            "law_temperature",
        ):
            if not getattr(self, name) > 0:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("steps", "minutes", "patience"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; expected more than 0, or none")
        if self.max_length < 3:
            raise InvalidInputError(f"max_length is {self.max_length}; expected at least 3 tokens")
        if self.warmup_steps < 0 or self.weight_decay < 0:
            raise InvalidInputError("warmup_steps and weight_decay: expected 0 or more")
        if not 0 <= self.loss_warmup <= 1:
            raise InvalidInputError(f"loss_warmup is {self.loss_warmup}; expected a share from 0 to 1")
        if self.loss not in LOSSES:
            raise InvalidInputError(f"loss is {self.loss!r}; expected one of {', '.join(LOSSES)}")
        if self.precision not in ("no", "bf16", "fp16"):
            raise InvalidInputError(f"precision is {self.precision!r}; expected no, bf16 or fp16")

    def loss_at(self, step: int, steps: int) -> Loss:
        """The loss of a step, counted from 0."""
        return "ce" if step < self.loss_warmup * steps else cast(Loss, self.loss)

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        done = min(1.0, max(0.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps)))
        return self.learning_rate * warm * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * done)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Names of the options that decide about the curve and differ."""
        names = (field.name for field in fields(self) if field.name not in MAY_CHANGE)
        return [name for name in names if other.get(name) != getattr(self, name)]
