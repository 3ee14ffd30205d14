"""The flags that `train head`, `train draft` and `train exit` share: one per field of `TrainOptions` and `Session`.

Owns their help and how a command gets them. They are put into a command's signature here, because thirty parameters in
three places would drift apart.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish.cli import options

_RUN, _LEARNING, _MEASURING, _TARGET = "Run", "Learning", "Measuring", "Target"

DATA = Annotated[Path, typer.Argument(help="Directory of a data set that `pilotfish train data` made.")]
OUTPUT = Annotated[Path, typer.Argument(help="Directory of the run, and of the drafter in the end.")]

_SESSION: Mapping[str, tuple[Any, Any, str, str]] = {
    "model": (str, options.DEMO_MODEL, "The target that made the data.", _TARGET),
    "executor": (str, "auto", "auto, native or torch.", _TARGET),
    "weights": (str, "auto", options.WEIGHTS_HELP, _TARGET),
    "threads": (int | None, None, "Of the native executor; all physical cores by default.", _TARGET),
    "device": (str, "cpu", "cpu, or auto for the GPUs that Accelerate finds.", _RUN),
    "dtype": (str, "bfloat16", "Of the drafter's files: bfloat16 or float32.", _RUN),
    "resume": (bool, False, "Go on with the run in OUTPUT.", _RUN),
    "draft_vocab_size": (int, 8192, "Tokens the drafter may say, the most frequent ones.", _LEARNING),
    "check_prompts": (int, 16, "Held-out prompts to measure the finished drafter on; 0 leaves it out.", _MEASURING),
}
_TRAINING: Mapping[str, tuple[Any, Any, str, str]] = {
    "steps": (int | None, None, "Optimizer steps; what --epochs makes by default.", _RUN),
    "epochs": (float, 2.0, "Passes over the training split.", _RUN),
    "minutes": (float | None, None, "End cleanly after so long; --resume goes on.", _RUN),
    "checkpoint_every": (int, 100, "Steps between checkpoints.", _RUN),
    "seed": (int, 0, "Of the order of the data and of new weights.", _RUN),
    "precision": (str, "no", "Mixed precision: no, bf16 or fp16.", _RUN),
    "batch_tokens": (int, 512, "Tokens of a pack of conversations.", _LEARNING),
    "packs_per_step": (int, 1, "Packs per optimizer step, all processes together.", _LEARNING),
    "max_length": (int, 1024, "Of a longer conversation the first tokens are used.", _LEARNING),
    "learning_rate": (float, 1e-3, "After the warm-up; falls along a cosine to a tenth.", _LEARNING),
    "warmup_steps": (int, 50, "Of the learning rate.", _LEARNING),
    "weight_decay": (float, 0.01, "Of matrices.", _LEARNING),
    "clip": (float, 1.0, "The gradient's norm at most.", _LEARNING),
    "loss": (str, "lk", "After the warm-up: ce, tv, nla or lk.", _LEARNING),
    "loss_warmup": (float, 0.5, "Share of the steps that use cross-entropy first.", _LEARNING),
    "law_temperature": (float, 1.0, "Of the target's law; below 1 learns more of the first choice.", _LEARNING),
    "evaluate_every": (int, 100, "Steps between measurements on held-out text.", _MEASURING),
    "evaluate_tokens": (int, 10_000, "Held-out answer tokens used.", _MEASURING),
    "evaluate_depths": (int, 6, "Draft lengths reported.", _MEASURING),
    "patience": (int | None, 10, "Measurements without a better projected speedup before the end.", _MEASURING),
}
UNROLLING: Mapping[str, tuple[Any, Any, str, str]] = {
    "depths": (int, 3, "Unrolled steps of training-time test.", _LEARNING),
    "depth_weight": (float, 0.8, "Each depth counts so many times the one before.", _LEARNING),
}
"""Flags of a drafter that feeds on what it made itself."""


def training_flags(
    extra: Mapping[str, tuple[Any, Any, str, str]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the shared flags; it is called with `session` and `train_options` made of them.

    Args:
        extra: further fields of `TrainOptions` that this command has.
    """
    table = {**_SESSION, **_TRAINING, **(extra or {})}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        kept = [parameter for name, parameter in own.items() if name not in ("session", "train_options")]

        def run(**values: Any) -> None:
            from pilotfish.bench.provenance import provenance
            from pilotfish.train.options import TrainOptions
            from pilotfish.train.session import Session

            fields = {name: values.pop(name) for name in table}
            train_options = TrainOptions(**{name: fields[name] for name in fields if name not in _SESSION})
            session = Session(
                data=values.pop("data"),
                output=values.pop("output"),
                origin=provenance(fields["seed"]),
                **{name: fields[name] for name in _SESSION},
            )
            command(session=session, train_options=train_options, **values)

        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[
                    kind, typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel=panel)
                ],
            )
            for name, (kind, default, text, panel) in table.items()
        ]
        first = [
            inspect.Parameter("data", inspect.Parameter.KEYWORD_ONLY, annotation=DATA),
            inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, annotation=OUTPUT),
        ]
        own_flags = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
        run.__signature__ = inspect.Signature([*first, *own_flags, *shared])  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def fields_covered() -> set[str]:
    """Names of the fields that have a flag, for the test that none lacks one."""
    return {*_SESSION, *_TRAINING, *UNROLLING}
