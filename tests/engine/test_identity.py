"""The promise on the real model, with no tolerance: a sample of `benchmarks/identity_matrix.py`."""

from dataclasses import replace

import pytest

from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.engine.engine import Engine
from pilotfish.models.files import resolve
from pilotfish.models.loading import load_model
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.sampling.params import SamplingParams
from tests.engine.tiny import run

MODEL = "smollm2-135m-instruct"
QUESTIONS = [
    "Repeat three times: the pilotfish swims ahead of the shark.",
    "List five rivers with their countries.",
    "def area(width, height):\n    return width * height\n\nRepeat this code with a docstring.",
    "Why?",
]
SETTINGS = [
    {"temperature": 0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40},
]

pytestmark = pytest.mark.demo_model


@pytest.fixture(scope="module")
def model():
    return load_model(MODEL, executor="native")


@pytest.fixture(scope="module")
def draft(model):
    """The target's own first layers as a draft model."""
    config = model.files.config
    return NativeExecutor(replace(config, layers=config.layers[:4]), resolve(MODEL).weights)


@pytest.fixture(scope="module")
def prompts(model):
    return [model.tokenizer.chat([{"role": "user", "content": question}]) for question in QUESTIONS]


def engine(model, drafter=None, **options):
    tokenizer = model.tokenizer
    return Engine(
        model.executor, tokenizer.decode, tokenizer.vocab_size, model.eos_ids, drafter=drafter, draft_len=8, **options
    )


@pytest.fixture(scope="module")
def params():
    return [SamplingParams(seed=place, max_tokens=24, logprobs=2, **values) for place, values in enumerate(SETTINGS)]


@pytest.fixture(scope="module")
def plain(model, prompts, params):
    return [run(engine(model), [prompt], own)[0] for prompt, own in zip(prompts, params, strict=True)]


@pytest.mark.parametrize("draft_len", [1, 3, 8])
@pytest.mark.parametrize("kind", ["ngram", "draft_model"])
def test_ids_text_logprobs_and_endings_equal_plain_decoding(model, draft, prompts, params, plain, kind, draft_len):
    drafter = NgramDrafter(1, 3) if kind == "ngram" else DraftModelDrafter(draft)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        batch = run(
            engine(model, drafter), [prompts[i] for i in order], [params[i] for i in order], draft_len=draft_len
        )
        for place, request in zip(order, batch, strict=True):
            assert request.output == plain[place].output
            assert request.ending.text == plain[place].ending.text
            assert request.logprobs == plain[place].logprobs, "to the bit"
            assert request.finish_reason is plain[place].finish_reason
        assert sum(request.counters.drafted_tokens for request in batch) > 0
        if kind == "ngram":
            assert sum(request.counters.accepted_tokens for request in batch) > 0


@pytest.mark.parametrize("verification", ["rejection", "block", "traversal"])
def test_ratio_rules_are_plain_decoding_at_temperature_0(model, draft, prompts, plain, verification):
    (request,) = run(
        engine(model, NgramDrafter(1, 3), verification=verification),
        prompts[:1],
        SamplingParams(temperature=0, max_tokens=24),
        draft_len=4,
    )
    assert request.output == plain[0].output
    assert request.counters.accepted_tokens > 0
