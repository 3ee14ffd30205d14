"""Every drafter in the engine: the same tokens with and without it, on both executors, as chain and as tree."""

import pytest

from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.drafters.early_exit import EarlyExitDrafter
from pilotfish.drafters.lookup import LookupDrafter
from pilotfish.drafters.recycle import RecycleDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.models.eagle import EagleHead
from pilotfish.models.eagle_files import eagle_config
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.native_linear import use_native_linears
from pilotfish.sampling.params import SamplingParams
from tests.engine.tiny import run, tiny_config, tiny_engine, tiny_target
from tests.models.memory_weights import random_weights, randomised
from tests.models.tiny_eagle import head_config

PROMPTS = [[3], [5, 6, 7, 5, 6, 7, 5, 6], list(range(20))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, seed=1),
    SamplingParams(temperature=0.7, max_tokens=24, seed=2),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=24, seed=4),
]
DRAFTERS = {
    "suffix": lambda target: SuffixDrafter(),
    "suffix tree": lambda target: SuffixDrafter(nodes_per_depth=3),
    "recycle": lambda target: RecycleDrafter(),
    "recycle tree": lambda target: RecycleDrafter(nodes_per_depth=3, shared=True),
    "lookup": lambda target: LookupDrafter(),
    "lookup tree": lambda target: LookupDrafter(nodes_per_depth=3),
    "early_exit": lambda target: EarlyExitDrafter(target, 2),
    "eagle": lambda target: EagleDrafter(eagle_head(), (1, 2, 3)),
    "eagle native": lambda target: EagleDrafter(eagle_head(native=True), (1, 2, 3)),
    "eagle tree": lambda target: EagleDrafter(eagle_head(), (1, 2, 3), nodes_per_depth=3),
}


def eagle_head(native=False):
    """A head that nobody trained; it is right now and then."""
    config = eagle_config(head_config("speculators", layer_ids=[1, 2, 3]))
    head = randomised(EagleHead(config), seed=0, spread=0.2)
    if native:
        use_native_linears(head, threads=1)
    return head


CHAINS = [kind for kind in DRAFTERS if "tree" not in kind]


@pytest.fixture(scope="module", params=["native", "torch"])
def target(request):
    if request.param == "torch":
        return tiny_target(layers=3)
    return NativeExecutor(tiny_config(layers=3), random_weights(tiny_config(layers=3)), threads=1)


@pytest.fixture(scope="module")
def plain_by_params(target):
    return [run(tiny_engine(target), PROMPTS, params) for params in PARAMS]


@pytest.mark.parametrize("draft_len", [2, 5])
@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_drafter_leaves_every_token_unchanged(target, plain_by_params, kind, draft_len):
    drafted = accepted = 0
    for params, plain in zip(PARAMS, plain_by_params, strict=True):
        speculative = run(tiny_engine(target, DRAFTERS[kind](target), draft_len), PROMPTS, params)
        for before, after in zip(plain, speculative, strict=True):
            assert after.output == before.output
            drafted += after.counters.drafted_tokens
            accepted += after.counters.accepted_tokens
    assert drafted > accepted > 0, "drafts were both accepted and rejected"


@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_batch_and_prompt_chunks_leave_each_request_as_it_is_alone(target, plain_by_params, kind, monkeypatch):
    monkeypatch.setattr("pilotfish.engine.scheduler.PROMPT_ROWS", 7)
    for order in ([2, 0, 1], [1, 2]):
        batch = run(tiny_engine(target, DRAFTERS[kind](target), 3), [PROMPTS[i] for i in order], PARAMS[1])
        assert [request.output for request in batch] == [plain_by_params[1][i].output for i in order]


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("verification", ["rejection", "block", "traversal"])
def test_ratio_rules_are_greedy_decoding_at_temperature_0(target, plain_by_params, kind, verification):
    engine = tiny_engine(target, DRAFTERS[kind](target), 4, verification=verification)
    speculative = run(engine, PROMPTS, PARAMS[0])
    assert [request.output for request in speculative] == [request.output for request in plain_by_params[0]]
    assert sum(request.counters.accepted_tokens for request in speculative) > 0


@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_ended_requests_leave_nothing_behind(target, kind):
    drafter = DRAFTERS[kind](target)
    engine = tiny_engine(target, drafter, 3)
    first = run(engine, PROMPTS, PARAMS[0])
    again = run(engine, PROMPTS, PARAMS[0])
    assert [request.output for request in again] == [request.output for request in first]
    held = [value for value in vars(drafter).values() if isinstance(value, dict)]
    assert not any(held), "state by request was dropped"
