"""Early exit: what it proposes, and that no row goes through a layer twice."""

import pytest
import torch

from pilotfish.drafters.early_exit import EarlyExitDrafter
from pilotfish.engine.resume import run_pass
from pilotfish.errors import SpeculativeConfigError
from pilotfish.models.base import Segment
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import PartialPass
from tests.drafters.common import propose
from tests.engine.tiny import VOCAB, run, tiny_config, tiny_engine, tiny_target
from tests.models.memory_weights import random_weights

GREEDY = Sampler(SamplingParams(temperature=0, seed=0), VOCAB)
SAMPLED = Sampler(SamplingParams(temperature=1, top_k=5, seed=0), VOCAB)
LAYERS = 4


@pytest.fixture(scope="module", params=["native", "torch"])
def target(request):
    if request.param == "torch":
        return tiny_target(layers=LAYERS)
    return NativeExecutor(tiny_config(layers=LAYERS), random_weights(tiny_config(layers=LAYERS)), threads=1)


@pytest.fixture(scope="module")
def first_layers():
    """A model that is the target's first two layers with its norm and head."""
    config = tiny_config(layers=2)
    weights = random_weights(tiny_config(layers=LAYERS))
    from pilotfish.models.torch_executor import TorchExecutor

    return TorchExecutor(config, weights)


def greedy_continuation(model, tokens, count):
    tokens = list(tokens)
    for _ in range(count):
        sequence = model.open(64)
        tokens.append(int(model.forward([Segment(sequence, tokens)]).logits[-1].argmax()))
        model.close(sequence)
    return tokens[-count:]


def test_draft_is_what_a_model_of_the_first_layers_says(target, first_layers):
    sequence = target.open(64)
    target.forward([Segment(sequence, [3, 4, 5, 6])])
    target.keep(sequence, range(4))
    drafter = EarlyExitDrafter(target, 2)
    tokens = [3, 4, 5, 6, 7]
    for _ in range(2):  # what a round drops leaves no trace
        draft = propose(drafter, tokens, 4, GREEDY, sequence=sequence)
        assert list(draft.tokens) == greedy_continuation(first_layers, tokens, 4)
        law = first_layers.forward([Segment(own := first_layers.open(16), tokens)]).logits[-1].softmax(0)
        first_layers.close(own)
        assert draft.confidence[0] == pytest.approx(float(law.max()), abs=1e-4)
        target.truncate(sequence, 4)
    target.close(sequence)


def test_reported_law_is_the_one_drawn_from(target):
    sequence = target.open(64)
    draft = propose(EarlyExitDrafter(target, 2), [3, 4], 3, SAMPLED, coupled=False, sequence=sequence)
    assert draft.probs.shape == (3, VOCAB)
    assert len(draft.confidence) == 3
    for node, token in enumerate(draft.tokens):
        assert (draft.probs[node] > 0).sum() == 5
        assert SAMPLED.draw(draft.probs[node], position=2 + node, start=2) == token
    target.close(sequence)


def test_no_row_goes_through_a_layer_twice(target, monkeypatch):
    ran = []
    forward = type(target).forward

    def counted(self, segments, *, layers=None, **rest):
        start, stop = layers or (0, LAYERS)
        ran.append((sum(len(segment.tokens) for segment in segments), start, stop))
        return forward(self, segments, layers=layers, **rest)

    monkeypatch.setattr(type(target), "forward", counted)
    engine = tiny_engine(target, EarlyExitDrafter(target, 2), 3)
    (request,) = run(engine, [[3, 4]], SamplingParams(temperature=0, max_tokens=12))
    by_layer = [sum(rows for rows, start, stop in ran if start <= layer < stop) for layer in range(LAYERS)]
    rounds, drafted = request.counters.rounds, request.counters.drafted_tokens
    assert by_layer == [1 + rounds + drafted] * LAYERS, "every prompt, pending and drafted row once"
    assert drafted > 0


@pytest.mark.parametrize("ran", [[0, 0], [3, 0], [2, 3], [5, 4]])
def test_continued_pass_has_the_bits_of_a_whole_one(target, ran):
    tokens = [[1, 2, 3, 4, 5], [6, 7, 8, 9]]
    parents = [[-1, 0, 0, 1, 2], None]

    def segments(numbers):
        return [
            Segment(number, own, above, logits_from=1)
            for number, own, above in zip(numbers, tokens, parents, strict=True)
        ]

    whole = [target.open(16) for _ in tokens]
    expected = target.forward(segments(whole), capture=(2, 4))
    numbers = [target.open(16) for _ in tokens]
    partials = []
    for number, own, above, rows in zip(numbers, tokens, parents, ran, strict=True):
        if rows == 0:
            partials.append(None)
            continue
        begun = Segment(number, own[:rows], None if above is None else above[:rows], logits_from=rows)
        partials.append(PartialPass(2, target.forward([begun], layers=(0, 2), capture=(2,)).hidden[2]))
    got = run_pass(target, segments(numbers), partials, (2, 4))
    close = torch.equal if target.exact else lambda a, b: torch.allclose(a, b, atol=1e-4)
    assert close(got.logits, expected.logits)
    assert all(close(got.hidden[boundary], expected.hidden[boundary]) for boundary in (2, 4))
    for number in [*whole, *numbers]:
        target.close(number)


def test_states_from_before_the_exit_layer_are_still_right(target):
    number = target.open(16)
    expected = target.forward([Segment(number, [1, 2, 3])], capture=(1,))
    hidden = target.forward([Segment(number, [1, 2, 3])], layers=(0, 2), capture=(2,)).hidden[2]
    got = run_pass(target, [Segment(number, [1, 2, 3])], [PartialPass(2, hidden)], (1,))
    assert torch.equal(got.hidden[1], expected.hidden[1])
    assert torch.equal(got.logits, expected.logits)
    target.close(number)


@pytest.mark.parametrize("exit_layer", [0, LAYERS, -1])
def test_exit_layer_outside_the_target_is_refused(target, exit_layer):
    with pytest.raises(SpeculativeConfigError, match=f"exit_layer={exit_layer}: expected 1 to 3"):
        EarlyExitDrafter(target, exit_layer)
