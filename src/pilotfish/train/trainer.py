"""The trainer: one loop for heads, draft models and exit adapters.

Owns the order of things: packs, forward, loss, step, measurement, checkpoint, end. Devices, mixed precision and several
processes are Hugging Face Accelerate's; each process takes its share of a step's packs, and losses are divided by what
all of them counted, so their number does not change the curve. Prints nothing: a listener is told.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from torch import Tensor

from pilotfish.errors import InvalidInputError, TrainingError
from pilotfish.train.acceptance import Acceptance, measure_acceptance
from pilotfish.train.checkpoint import Progress, RunDirectory
from pilotfish.train.losses import NEEDS_WHOLE_LAW, loss_rows
from pilotfish.train.options import Loss, TrainOptions
from pilotfish.train.packs import Pack, Packs
from pilotfish.train.projection import Projection, RoundCosts, project, tokens_per_round
from pilotfish.train.student import Student
from pilotfish.train.teacher import Teacher

Listener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A student on held-out text.

    Attributes:
        greedy, sampled: what to expect at temperatures 0 and 1.
    """

    acceptance: Acceptance
    greedy: Projection
    sampled: Projection

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.acceptance),
            "walked": self.acceptance.walked,
            "tokens_per_round": self.greedy.tokens_per_round,
            "speedups": self.greedy.speedups,
            "draft_len": self.greedy.draft_len,
            "projected_speedup": self.greedy.speedup,
            "tokens_per_round_sampled": self.sampled.tokens_per_round,
            "projected_speedup_sampled": self.sampled.speedup,
        }


def accelerator(precision: str, device: str) -> Accelerator:
    """The devices and processes of this run.

    Args:
        device: "cpu", or "auto" for what Accelerate finds.
    """
    # Accelerate remembers the first precision of the process; a second run may want another.
    AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision, cpu=device == "cpu")


class Trainer:
    """Trains a student.

    Args:
        student: on the CPU.
        training, held_out: packs; the latter have the teacher's boundary and the student's.
        teacher: at the temperature of training, over the student's draft vocabulary, on the accelerator's device.
        examiner: at temperature 1, over the student's `examined_ids`, for measurements.
        options: how.
        costs: of rounds with this student on this machine.
        directory: of the run, begun or to be gone on with.
        devices: of `accelerator`.
        listener: told each record of the log.

    Raises:
        InvalidInputError: the packs of a step cannot be shared among the processes.
    """

    def __init__(
        self,
        student: Student,
        training: Packs,
        held_out: Packs,
        teacher: Teacher,
        examiner: Teacher,
        options: TrainOptions,
        costs: RoundCosts,
        directory: RunDirectory,
        devices: Accelerator,
        listener: Listener | None = None,
    ) -> None:
        if options.packs_per_step % devices.num_processes:
            raise InvalidInputError(
                f"packs_per_step is {options.packs_per_step}; expected a multiple of the {devices.num_processes} "
                "processes, which share them"
            )
        self._training, self._held_out = training, held_out
        self._teacher, self._examiner = teacher, examiner
        self.options = options
        self._costs = costs
        self._directory = directory
        self._devices = devices
        self._listener = listener
        self.steps = options.steps or max(1, round(options.epochs * len(training.plan(0)) / options.packs_per_step))
        self.student = student
        decayed = [parameter for parameter in student.trained().values() if parameter.ndim > 1]
        others = [parameter for parameter in student.trained().values() if parameter.ndim == 1]
        optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=options.learning_rate,
            betas=(0.9, 0.95),
        )
        self._model, self._optimizer = devices.prepare(student, optimizer)
        self.progress = Progress()
        state = directory.latest()
        if state is not None:
            student.restore(state["trained"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress.of(state["progress"])
            if self.progress.ended != "patience" and self.progress.step < self.steps:
                self.progress.ended = None  # it was given more time, or more steps
        if devices.is_main_process:
            directory.cut_log(-1 if state is None else self.progress.step)
        self._measured = [held_out.read(places) for places in held_out.in_order(options.evaluate_tokens)]

    def run(self) -> Progress:
        """Trains to the end, and measures there.

        Raises:
            DataSetError: a shard is damaged, or the disk is full; checkpoints are kept.
            TrainingError: the loss is no number any more.
        """
        options, progress = self.options, self.progress
        before = progress.seconds
        started = time.monotonic()
        if progress.step == 0 and progress.best_step == 0 and not progress.ended:
            self._measure()
        while progress.ended is None:
            self._step()
            progress.seconds = before + time.monotonic() - started
            at_end = progress.step >= self.steps
            if options.minutes is not None and self._late(progress.seconds):
                at_end = True
            if progress.step % options.evaluate_every == 0 or at_end:
                self._measure()
            if at_end:
                progress.ended = "steps" if progress.step >= self.steps else "minutes"
            elif options.patience is not None and progress.worse >= options.patience:
                progress.ended = "patience"
            if progress.step % options.checkpoint_every == 0 or progress.ended:
                self._save()
        return progress

    def _late(self, seconds: float) -> bool:
        """Whether the time is up, by the main process's clock, so that all stop after the same step."""
        assert self.options.minutes is not None
        late = torch.tensor(float(self._devices.is_main_process and seconds >= 60 * self.options.minutes))
        return float(self._devices.reduce(late.to(self._devices.device), "sum")) > 0

    def _step(self) -> None:
        options, progress, devices = self.options, self.progress, self._devices
        kind = options.loss_at(progress.step, self.steps)
        rate = options.learning_rate_at(progress.step, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        started = time.monotonic()
        plans, position = self._training.take(progress.position, options.packs_per_step)
        packs = [self._training.read(plan) for plan in plans[devices.process_index :: devices.num_processes]]
        rows = sum(place.tokens - 1 for plan in plans for place in plan)
        depths = options.depths if self.student.unrolls else 1
        counts = torch.tensor(
            [[float(len(starts)) for starts in pack.starts(depths)] for pack in packs], device=devices.device
        ).sum(0)
        totals = devices.reduce(counts, "sum")
        weights = torch.tensor([options.depth_weight**depth for depth in range(depths)], device=devices.device)
        scale = weights / weights.sum() / totals.clamp_min(1.0)
        sums = torch.zeros_like(totals)
        for number, pack in enumerate(packs):
            last = number == len(packs) - 1
            # Gradients are exchanged once, with the last pack's.
            with nullcontext() if last else devices.no_sync(self._model):
                sums += self._backward(pack.to(devices.device), depths, kind, scale)
        norm = devices.clip_grad_norm_(list(self.student.trained().values()), options.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        by_depth = devices.reduce(sums, "sum") / totals.clamp_min(1.0)
        loss = float((by_depth * weights).sum() / weights.sum())
        if loss != loss or float(norm) != float(norm):
            raise TrainingError(
                f"the loss of step {progress.step + 1} is not a number: train again with a lower learning rate; "
                "checkpoints of earlier steps are kept"
            )
        progress.step += 1
        progress.position = position
        progress.tokens += rows
        seconds = time.monotonic() - started
        self._tell(
            {
                "step": progress.step,
                "loss": loss,
                "loss_by_depth": by_depth.tolist(),
                "loss_kind": kind,
                "learning_rate": rate,
                "gradient_norm": float(norm),
                "tokens": progress.tokens,
                "tokens_per_second": rows / seconds,
                "seconds": round(progress.seconds + seconds, 3),
                "epoch": position.epoch,
            }
        )

    def _backward(self, pack: Pack, depths: int, kind: Loss, scale: Tensor) -> Tensor:
        """Adds one pack's gradients; returns the sum of its losses by depth."""
        with self._devices.autocast():
            found = self._model(pack, depths)
        answers = pack.answers.nonzero()[:, 0]
        states = pack.hidden[self._teacher.boundary][answers]
        law = self._teacher.whole(states) if kind in NEEDS_WHOLE_LAW else self._teacher.restricted(states)
        place = torch.full((len(pack.tokens),), -1, device=answers.device)
        place[answers] = torch.arange(len(answers), device=answers.device)
        sums = torch.zeros_like(scale)
        total = scale.new_zeros(())
        for depth, each in enumerate(found):
            rows = loss_rows(kind, each.logits, law.probs[place[each.laws]]).sum()
            sums[depth] = rows.detach()
            total = total + rows * scale[depth]
        if not found:  # no draft could start in what was left of these conversations
            total = total + sum(parameter.sum() for parameter in self.student.trained().values()) * 0.0
        # Gradients are averaged over the processes; their share was counted over all of them.
        self._devices.backward(total * self._devices.num_processes)
        return sums

    def _measure(self) -> None:
        options, progress = self.options, self.progress
        measurement = self.measure()
        better = measurement.greedy.speedup > progress.best_speedup
        if better or progress.best_step == progress.step == 0:
            progress.best_speedup, progress.best_step, progress.worse = measurement.greedy.speedup, progress.step, 0
            if self._devices.is_main_process:
                self._directory.save_best(progress.step, self.student.trained())
        else:
            progress.worse += 1
        self._tell({"step": progress.step, "held_out": measurement.as_dict(), "tokens": progress.tokens})
        self._devices.wait_for_everyone()
        assert options.evaluate_depths == len(measurement.acceptance.greedy)

    def measure(self) -> Measurement:
        """The student as it is, on held-out text."""
        packs = [pack.to(self._devices.device) for pack in self._measured]
        found = measure_acceptance(self.student, self._examiner, packs, self.options.evaluate_depths)
        walked = found.walked or tokens_per_round(found.greedy)
        sampled = tokens_per_round(found.sampled)
        return Measurement(found, project(walked, self._costs), project(sampled, self._costs))

    def _save(self) -> None:
        if self._devices.is_main_process:
            self._directory.save(self.progress, self.student.trained(), self._optimizer.state_dict())
        self._devices.wait_for_everyone()

    def _tell(self, record: Mapping[str, Any]) -> None:
        if not self._devices.is_main_process:
            return
        self._directory.log(record)
        if self._listener is not None:
            self._listener(record)
