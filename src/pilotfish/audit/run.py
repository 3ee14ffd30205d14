"""The audit as one call: which levels, how large, on what. The way in for the command line and for tests."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from pilotfish.audit.identity import PROMPT_TEXTS, ModelUnderTest, run_identity
from pilotfish.audit.law import run_law
from pilotfish.audit.noise import run_noise
from pilotfish.audit.plans import SIZES, make_plans
from pilotfish.audit.results import Level, Report
from pilotfish.audit.subject import Subject
from pilotfish.audit.theory import run_theory
from pilotfish.errors import InvalidInputError
from pilotfish.models.loading import ExecutorChoice, load_model
from pilotfish.models.machine import Machine
from pilotfish.models.weights import WeightType

LOCAL_LEVELS = ("theory", "noise", "identity", "law")
DEFAULT_SEED = 20_261_129


def audit(
    levels: Sequence[str] = LOCAL_LEVELS,
    *,
    size: str = "standard",
    seed: int = DEFAULT_SEED,
    subject: Subject | None = None,
    model: ModelUnderTest | None = None,
    workers: int | None = None,
    tell: Callable[[Level], None] = lambda level: None,
) -> Report:
    """Runs the local levels one after the other.

    Args:
        levels: of `LOCAL_LEVELS`.
        size: "ci" for every change, "standard" by default, "full" for a release.
        seed: decides all toys, seeds and prompts of the run.
        subject: what is audited; this package's own decoder by default.
        model: a real model for the identity level.
        workers: processes of the theory and law levels; one per core, at most four, by default.
        tell: called with each level as it ends.

    Raises:
        InvalidInputError: a level or size is unknown.
    """
    check_levels(levels, size)
    own = subject or Subject()
    processes = workers or min(4, Machine.here().usable_processors)
    with _pool(processes) as pool:
        run: dict[str, Callable[[], Level]] = {
            "theory": lambda: run_theory(own, size, seed, pool=pool),
            "noise": lambda: run_noise(own, size, seed),
            "identity": lambda: run_identity(own, size, seed, model),
            "law": lambda: run_law(own, make_plans(SIZES[size]), seed, pool),
        }
        done = []
        for name in LOCAL_LEVELS:
            if name in levels:
                done.append(run[name]())
                tell(done[-1])
    return Report(tuple(done), seed, size)


@contextmanager
def _pool(processes: int) -> Iterator[Executor | None]:
    """Processes that start when the first work comes; none where one process is enough."""
    if processes == 1:
        yield None
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        yield pool


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def check_levels(levels: Sequence[str], size: str) -> None:
    """Refuses what `audit` does not know.

    Raises:
        InvalidInputError: a level or size is unknown.
    """
    for level in levels:
        if level not in LOCAL_LEVELS:
            raise InvalidInputError(f"level {level!r} is not one of {', '.join(LOCAL_LEVELS)}")
    if size not in SIZES:
        raise InvalidInputError(f"size={size!r}: expected one of {', '.join(SIZES)}")


def model_under_test(
    name: str, *, executor: ExecutorChoice = "auto", weights: WeightType = "auto", threads: int | None = None
) -> ModelUnderTest:
    """Loads a model for the identity level, with prompts of our own writing.

    Raises:
        ModelError: it cannot be found, read or used.
    """
    model = load_model(name, executor=executor, weights=weights, threads=threads)
    prompts = tuple(tuple(model.tokenizer.encode(text)) for text in PROMPT_TEXTS)
    return ModelUnderTest(name, model.executor, model.tokenizer.vocab_size, prompts)
