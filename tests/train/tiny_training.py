"""Short trainings on the tiny world. Run as a program it is one process of a training, for tests that kill it."""

import json
import sys
from pathlib import Path

import torch

from pilotfish.train.draft import DraftStudent
from pilotfish.train.exit import ExitStudent
from pilotfish.train.head import HeadOptions, HeadStudent
from pilotfish.train.options import TrainOptions
from pilotfish.train.session import Session, train_drafter
from tests.train.tiny_data import COSTS

SHORT = {
    "steps": 12, "batch_tokens": 200, "packs_per_step": 2, "learning_rate": 5e-3, "warmup_steps": 3, "depths": 2,
    "evaluate_every": 4, "evaluate_depths": 3, "evaluate_tokens": 300, "patience": None, "checkpoint_every": 3,
}  # fmt: skip


def head(files, vocabulary, **shape):
    shape.setdefault("boundaries", (1, 2, 4))
    return HeadStudent(files.config, files.weights, vocabulary.ids, HeadOptions(**shape))


def draft(files, vocabulary, layers=(0,)):
    return DraftStudent(files.config, files.weights, vocabulary.ids, layers, files.tokenizer_path, files.eos_ids)


def exit_adapter(files, vocabulary):
    return ExitStudent(files.config, files.weights, vocabulary.ids, 1, 16)


def train(world, output, make=head, *, listener=None, session=None, **options):
    told = {
        "model": str(world.target),
        "data": world.data,
        "draft_vocab_size": 384,
        "threads": 1,
        "dtype": "float32",
        "check_prompts": 0,
        **(session or {}),
    }
    return train_drafter(
        Session(output=output, **told),
        TrainOptions(**{**SHORT, **options}),
        make,
        listener=listener,
        costs=COSTS,
    )


def spoiled(make, part, spread):
    """Makes a student whose start is far from the target: what it knows in the end it has learned."""

    def made(files, vocabulary):
        student = make(files, vocabulary)
        with torch.no_grad():
            for name, parameter in student.trained().items():
                if part in name:
                    parameter += spread * torch.randn(parameter.shape)
        return student

    return made


def main() -> None:
    from types import SimpleNamespace

    torch.set_num_threads(1)
    target, data, output, resume, options = sys.argv[1:]
    world = SimpleNamespace(target=Path(target), data=Path(data))
    train(world, Path(output), session={"resume": resume == "resume"}, **json.loads(options))


if __name__ == "__main__":
    main()
