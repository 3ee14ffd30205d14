"""Tiny engines on random weights, and drafters whose every word the test decides."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.engine import Engine
from pilotfish.engine.request import Request
from pilotfish.models.base import Executor
from pilotfish.models.config import DecoderConfig, LayerConfig, RopeConfig
from pilotfish.models.torch_executor import TorchExecutor
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import EMPTY_DRAFT, Draft
from tests.models.memory_weights import MemoryWeights, random_weights

VOCAB = 64
CONTEXT = 96


def tiny_config(layers: int = 2, vocab_size: int = VOCAB, context_length: int = CONTEXT) -> DecoderConfig:
    rope = RopeConfig(tuple(10_000.0 ** (-2 * pair / 16) for pair in range(8)))
    return DecoderConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        context_length=context_length,
        norm_eps=1e-5,
        query_scale=0.25,
        layers=(LayerConfig(rope),) * layers,
        tie_word_embeddings=True,
    )


def tiny_weights(seed: int = 0) -> MemoryWeights:
    return random_weights(tiny_config(), seed)


def tiny_target(**config: int) -> TorchExecutor:
    return TorchExecutor(tiny_config(**config), random_weights(tiny_config(**config)))


def similar_draft(spread: float = 0.03, **config: int) -> TorchExecutor:
    """A draft model that agrees with `tiny_target` often, but not always."""
    weights = random_weights(tiny_config(**config))
    noise = random_weights(tiny_config(**config), seed=1, spread=spread)
    tensors = {
        name: tensor + (noise.tensors[name] if "norm" not in name else 0.0) for name, tensor in weights.tensors.items()
    }
    return TorchExecutor(tiny_config(**config), MemoryWeights(tensors))


def letters(ids: Sequence[int]) -> str:
    """One character per id, so that text and tokens can be compared by eye."""
    return "".join(chr(0x100 + token) for token in ids)


def tiny_engine(target: Executor, drafter: Drafter | None = None, draft_len: int = 4, **options: object) -> Engine:
    options.setdefault("vocab_size", VOCAB)
    return Engine(target, letters, drafter=drafter, draft_len=draft_len, **options)  # type: ignore[arg-type]


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams], **options: int
) -> list[Request]:
    """All requests of one batch, ended, in the order of the prompts."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    requests: dict[int, Request] = {}
    for delivered in engine.run(prompts, each, **options):
        requests.update((request.key, request) for request in delivered)
    return [requests[key] for key in sorted(requests)]


class ScriptedDrafter(Drafter):
    """Drafts what a function of the committed tokens says; keeps no state, but remembers what it was asked and told."""

    nodes_per_depth = 2

    def __init__(self, script: Callable[[Sequence[int], int], Draft]) -> None:
        self._script = script
        self.asked: list[int] = []
        self.observed: list[Observation] = []
        self.open: set[int] = set()

    def begin(self, request: int, capacity: int) -> None:
        self.open.add(request)

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        assert all(job.request in self.open for job in jobs)
        self.asked.extend(job.draft_len for job in jobs)
        return [self._script(job.tokens, job.draft_len) for job in jobs]

    def observe(self, observation: Observation) -> None:
        self.observed.append(replace(observation, tokens=tuple(observation.tokens)))

    def end(self, request: int) -> None:
        self.open.remove(request)


def replay(known: Sequence[int], prompt_length: int) -> ScriptedDrafter:
    """A perfect drafter: knows the answer."""

    def script(tokens: Sequence[int], draft_len: int) -> Draft:
        place = len(tokens) - prompt_length
        rest = known[place : place + draft_len]
        return Draft.chain(rest) if rest else EMPTY_DRAFT

    return ScriptedDrafter(script)
