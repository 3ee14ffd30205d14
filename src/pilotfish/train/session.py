"""A whole training: from a target's name and a data set to a checked directory that the engine loads.

Owns the order around the trainer: what is refused before anything is spent, what a resumed run must share with the one
before, the measurement of this machine, and the export of the best weights. Prints nothing.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]

from pilotfish.engine.llm import LLM
from pilotfish.errors import InvalidInputError, TrainingError
from pilotfish.models.files import ModelFiles, resolve
from pilotfish.models.loading import ExecutorChoice
from pilotfish.models.weights import WeightType
from pilotfish.train.checkpoint import RunDirectory
from pilotfish.train.costs import measure_costs
from pilotfish.train.dataset import DataSet
from pilotfish.train.finish import Outcome, finish
from pilotfish.train.options import TrainOptions
from pilotfish.train.packs import Packs
from pilotfish.train.projection import RoundCosts
from pilotfish.train.student import Student
from pilotfish.train.teacher import Teacher
from pilotfish.train.trainer import Listener, Trainer, accelerator
from pilotfish.train.vocabulary import DraftVocabulary, choose_vocabulary

PROMPTS_FOR_COSTS = 3
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

StudentMaker = Callable[[ModelFiles, DraftVocabulary], Student]


@dataclass(frozen=True, slots=True)
class Session:
    """What to train, from what, and where.

    Attributes:
        model: the target, by path or name.
        data: directory of a data set that the same target made.
        output: directory of the run and of what comes of it.
        draft_vocab_size: tokens the drafter may say; at most the target's vocabulary.
        dtype: of the files: "bfloat16" or "float32".
        resume: go on with the run in `output`.
        device: "cpu", or "auto" for what Accelerate finds.
        executor, weights, threads: of the target, see `LLM`.
        check_prompts: held-out prompts that the finished drafter is measured on; 0 leaves the check out.
        origin: command, commit, versions and hardware, for the record.
    """

    model: str
    data: Path
    output: Path
    draft_vocab_size: int = 8192
    dtype: str = "bfloat16"
    resume: bool = False
    device: str = "cpu"
    executor: ExecutorChoice = "auto"
    weights: WeightType = "auto"
    threads: int | None = None
    check_prompts: int = 16
    origin: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidInputError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")


def train_drafter(
    session: Session,
    options: TrainOptions,
    make: StudentMaker,
    *,
    listener: Listener | None = None,
    costs: RoundCosts | None = None,
) -> Outcome | None:
    """Trains a drafter, exports the best of it and checks it.

    Args:
        make: a student for the target and a draft vocabulary.
        listener: told each record of the log.
        costs: of rounds on this machine; measured where they are not given.

    Returns:
        what came of it; `None` in all processes but the first.

    Raises:
        InvalidInputError: an option does not fit the target or the data.
        DataSetError: the data is another model's, damaged, empty, or lacks hidden states; or the disk is full.
        TrainingError: the output holds another run, or what came of this one does not pass its check.
        ModelError: the target cannot be found, read or used.
    """
    devices = accelerator(options.precision, session.device)
    directory = RunDirectory(session.output)
    resumed = directory.exists()
    devices.wait_for_everyone()  # all have looked before the first one writes
    if resumed and not session.resume:
        raise TrainingError(
            f"{session.output} holds a run already: --resume goes on with it; or name another directory"
        )
    files = resolve(session.model)
    llm = _target(session, devices)
    data = DataSet(session.data, executor=llm.engine.target, fingerprint=files.fingerprint)
    shards = directory.told()["shards"] if resumed else _shards(data, devices)
    vocabulary = _vocabulary(session, options, files, data, shards)
    torch.manual_seed(options.seed)
    student = make(files, vocabulary)
    final = files.config.num_layers
    packing = {"batch_tokens": options.batch_tokens, "max_length": options.max_length, "shards": shards}
    training = Packs(data, "train", (*student.boundaries, final), **packing, seed=options.seed)
    held_out = Packs(data, "held_out", (*student.boundaries, final), **packing)
    prompts = held_out_prompts(held_out, data)
    identity = {
        "kind": student.kind,
        "target": files.fingerprint,
        "data": _digest(data, shards),
        "shards": shards,
        "student": student.settings(),
        "draft_vocab_coverage": round(vocabulary.coverage, 4),
        "dtype": session.dtype,
        "processes": devices.num_processes,
    }
    if resumed:
        costs = _resumed(directory, identity, options)
    else:
        if devices.is_main_process:
            costs = costs or _costs(llm, files, student, prompts[:PROMPTS_FOR_COSTS])
            begun = {**identity, "options": options.as_dict(), "costs": asdict(costs), "model": session.model}
            directory.begin({**begun, "data_directory": str(session.data), "origin": dict(session.origin or {})})
        devices.wait_for_everyone()
        costs = _costs_of(directory.told()["costs"])
    teacher, examiner = (
        Teacher(files.config, files.weights, ids, temperature=temperature, device=devices.device)
        for ids, temperature in ((student.target_ids, options.law_temperature), (student.examined_ids, 1.0))
    )
    trainer = Trainer(student, training, held_out, teacher, examiner, options, costs, directory, devices, listener)
    trainer.run()
    if not devices.is_main_process:
        return None
    return finish(session, llm, files, trainer, directory, data, prompts, rope_source(files), DTYPES[session.dtype])


def _target(session: Session, devices: Accelerator) -> LLM:
    return LLM(
        session.model,
        speculative_config=None,
        executor=session.executor,
        weights=session.weights,
        threads=session.threads,
        device="cpu" if session.device == "cpu" else str(devices.device),
    )


def _shards(data: DataSet, devices: Accelerator) -> int:
    """Shards that all processes have seen; a set that grows may have got one between two looks."""
    seen = torch.tensor([len(data.manifest.shards)], device=devices.device)
    return int(devices.gather(seen).min())


def _vocabulary(
    session: Session, options: TrainOptions, files: ModelFiles, data: DataSet, shards: int
) -> DraftVocabulary:
    size = min(session.draft_vocab_size, files.config.vocab_size)
    texts = Packs(data, "train", (), batch_tokens=options.batch_tokens, max_length=options.max_length, shards=shards)
    return choose_vocabulary(texts.token_counts(files.config.vocab_size), size)


def held_out_prompts(held_out: Packs, data: DataSet) -> list[list[int]]:
    """What comes before the first answer of each held-out conversation."""
    prompts = []
    for place in held_out.places:
        conversation = data.read(place)
        first = int(conversation.loss_mask.nonzero()[0, 0])
        if first:
            prompts.append(conversation.tokens[:first].tolist())
    return prompts


def _digest(data: DataSet, shards: int) -> str:
    sums = [shard.sha256 for shard in data.manifest.shards[:shards]]
    return hashlib.sha256(" ".join(sums).encode()).hexdigest()


def _costs(llm: LLM, files: ModelFiles, student: Student, prompts: Sequence[Sequence[int]]) -> RoundCosts:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "untrained"
        student.save(path, torch.bfloat16, rope_source(files))
        return measure_costs(llm, files.fingerprint, {"method": student.method, "model": str(path)}, prompts)


def _costs_of(values: Mapping[str, Any]) -> RoundCosts:
    passes = {int(rows): float(seconds) for rows, seconds in values["passes"].items()}
    return RoundCosts(values["plain"], passes, values["draft"], values["around"])


def _resumed(directory: RunDirectory, identity: Mapping[str, Any], options: TrainOptions) -> RoundCosts:
    """The costs of the run that is gone on with, once it is known to be the same run."""
    told = directory.told()
    for name, value in identity.items():
        if told.get(name) != json.loads(json.dumps(value)):
            raise TrainingError(
                f"{directory.path} was begun with {name} {told.get(name)!r}, this is {value!r}: "
                "go on with what it was begun with, or train in another directory"
            )
    different = options.differences(told["options"])
    if different:
        raise TrainingError(
            f"{directory.path} was begun with other options ({', '.join(different)}): go on with those it was begun "
            "with, which its run.json has, or train in another directory"
        )
    return _costs_of(told["costs"])


def rope_source(files: ModelFiles) -> dict[str, Any] | None:
    """The target's own `config.json`, where it came with one."""
    path = files.tokenizer_path / "config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
