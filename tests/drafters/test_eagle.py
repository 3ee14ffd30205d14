"""The EAGLE drafter: its drafts against recomputation from scratch, whatever was accepted before."""

import random

import pytest
import torch

from pilotfish.drafters.base import DraftJob, Observation
from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.models.base import Segment
from pilotfish.models.decoder import RowAttention
from pilotfish.models.eagle_files import load_eagle_head
from pilotfish.models.torch_executor import TorchExecutor
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT, ROOT
from tests.drafters.common import propose
from tests.models.tiny_eagle import (
    LAYOUTS,
    VOCAB,
    head_config,
    head_tensors,
    rendered,
    save_head,
    target_config,
    target_weights,
)

BOUNDARIES = (1, 3, 6)
DRAFT_VOCAB = 40
GREEDY = Sampler(SamplingParams(temperature=0, seed=0), VOCAB)
SAMPLED = Sampler(SamplingParams(temperature=1, top_k=5, seed=0), VOCAB)


@pytest.fixture(scope="module")
def target():
    return TorchExecutor(target_config(), target_weights())


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def tensors(layout):
    return head_tensors(layout, draft_vocab=DRAFT_VOCAB, fc_norm=True)


@pytest.fixture(scope="module")
def head(tmp_path_factory, layout, tensors):
    config = head_config(layout, draft_vocab=DRAFT_VOCAB, fc_norm=True, norm_output=True)
    return load_eagle_head(
        save_head(tmp_path_factory.mktemp("head"), config, tensors), target_config(), target_weights()
    )


def states_of(target, tokens):
    """The target's hidden states at all tokens but the pending one."""
    sequence = target.open(len(tokens))
    hidden = target.forward([Segment(sequence, tokens[:-1], logits_from=len(tokens) - 1)], capture=BOUNDARIES).hidden
    target.close(sequence)
    return hidden


def observe(drafter, target, tokens, seen=0, request=0):
    """Tells the drafter of all tokens from position `seen` on."""
    hidden = {boundary: states[seen:] for boundary, states in states_of(target, tokens).items()}
    drafter.observe(Observation(request, tokens, hidden))


def fresh(head, target, tokens, nodes_per_depth=1):
    drafter = EagleDrafter(head, BOUNDARIES, nodes_per_depth)
    drafter.begin(0, 128)
    observe(drafter, target, tokens)
    return drafter


def laws_along(head, target, tokens, path):
    """The head's law after each prefix of a drafted path, from scratch and without a cache."""
    features = head.fuse(torch.cat(list(states_of(target, tokens).values()), dim=-1))
    following = [*tokens[1:], *path]
    laws = []
    with torch.no_grad():
        for count in range(len(tokens) - 1, len(following) + 1):
            rows = torch.arange(count)
            attention = RowAttention(head.config.layer, rows, rows[:, None] >= rows)
            normed, fed_back = head.run(torch.tensor(following[:count]), features, rows, attention)
            law = torch.zeros(VOCAB)
            law[head.target_ids] = head.logits(normed[-1:])[0].softmax(-1)
            laws.append(law)
            features = torch.cat((features, fed_back[-1:]))
    return laws


def test_chain_is_what_the_equations_say(head, tensors, target):
    tokens = [3, 14, 15, 9, 2, 6]
    draft = propose(fresh(head, target, tokens), tokens, 5, GREEDY)
    states = torch.cat(list(states_of(target, tokens).values()), dim=-1)
    embedding = target_weights().tensors["model.embed_tokens.weight"]
    flags = {"fc_norm": True, "norm_output": True}
    expected, _ = rendered(tensors, embedding, flags, states, tokens[1:], 5)
    assert list(draft.tokens) == expected
    assert draft.is_chain
    assert draft.probs is None
    highest = [float(law.max()) for law in laws_along(head, target, tokens, draft.tokens)[:-1]]
    assert draft.confidence == pytest.approx(highest, abs=1e-5)


@pytest.mark.parametrize("nodes_per_depth", [1, 3])
def test_draft_after_any_history_is_that_of_a_fresh_drafter(head, target, nodes_per_depth):
    rng = random.Random(nodes_per_depth)
    for _ in range(4):
        tokens = [rng.randrange(VOCAB) for _ in range(rng.randrange(2, 8))]
        drafter = fresh(head, target, tokens, nodes_per_depth)
        for _ in range(6):
            draft = EMPTY_DRAFT
            if rng.random() < 0.7:  # it is not asked in every round
                draft = propose(drafter, tokens, rng.randrange(1, 5), GREEDY)
            # Some of a path of its own, some of somebody else's draft, and the target's token.
            path, node = [], ROOT
            while children := [child for child, parent in enumerate(draft.parents) if parent == node]:
                if rng.random() < 0.4:
                    break
                node = rng.choice(children)
                path.append(node)
            others = [rng.randrange(VOCAB) for _ in range(rng.randrange(3))]
            seen = len(tokens) - 1
            tokens = [*tokens, *(draft.tokens[node] for node in path), *others, rng.randrange(VOCAB)]
            observe(drafter, target, tokens, seen)
        got = propose(drafter, tokens, 4, GREEDY)
        expected = propose(fresh(head, target, tokens, nodes_per_depth), tokens, 4, GREEDY)
        assert (got.tokens, got.parents) == (expected.tokens, expected.parents)
        assert got.confidence == pytest.approx(expected.confidence, abs=1e-4)


def test_tree_holds_the_likeliest_paths(head, target):
    tokens = [3, 14, 15, 9]
    job = DraftJob(0, tokens, 1, 4, GREEDY, True, max_nodes=9)
    (draft,) = fresh(head, target, tokens, 3).propose([job])
    assert len(draft) == 9
    assert not draft.is_chain
    survival, paths = [], []
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        path = (*(paths[parent] if parent != ROOT else ()), token)
        paths.append(path)
        assert len(path) <= 4
        law = laws_along(head, target, tokens, path[:-1])[-1]
        survival.append(draft.confidence[node] * (survival[parent] if parent != ROOT else 1.0))
        assert draft.confidence[node] == pytest.approx(float(law[token]), abs=1e-5), "at temperature 0 its probability"
    assert survival == sorted(survival, reverse=True)
    assert len(set(paths)) == len(paths)
    # None of the siblings left out is likelier than the last node taken.
    for parent in range(ROOT, len(draft)):
        path = paths[parent] if parent != ROOT else ()
        if len(path) < 4:
            law = laws_along(head, target, tokens, path)[-1]
            taken = [token for token, above in zip(draft.tokens, draft.parents, strict=True) if above == parent]
            law[taken] = 0
            above = survival[parent] if parent != ROOT else 1.0
            if len(taken) < 3:
                assert above * float(law.max()) <= survival[-1] + 1e-5


def test_tree_of_a_sampled_request_starts_with_the_coupled_choice(head, target):
    tokens = [3, 14, 15, 9]
    chain = propose(fresh(head, target, tokens), tokens, 3, SAMPLED)
    tree = propose(fresh(head, target, tokens, 3), tokens, 3, SAMPLED)
    roots = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == ROOT]
    assert chain.tokens[0] in roots
    assert sum(share for share, parent in zip(tree.confidence, tree.parents, strict=True) if parent == ROOT) <= 1 + 1e-5


@pytest.mark.parametrize("nodes_per_depth", [1, 3])
def test_ratio_rules_get_a_chain_with_the_law_it_was_drawn_from(head, target, nodes_per_depth):
    tokens = [3, 14, 15]
    draft = propose(fresh(head, target, tokens, nodes_per_depth), tokens, 3, SAMPLED, coupled=False)
    assert draft.is_chain
    assert draft.probs.shape == (3, VOCAB)
    outside = torch.ones(VOCAB, dtype=torch.bool)
    outside[head.target_ids] = False
    assert float(draft.probs[:, outside].sum()) == 0
    for node, token in enumerate(draft.tokens):
        assert (draft.probs[node] > 0).sum() == 5, "top_k applies to the draft's law too"
        assert SAMPLED.draw(draft.probs[node], position=3 + node, start=3) == token


def test_requests_of_a_batch_do_not_see_each_other(head, target):
    texts = [[3, 14, 15], [9, 2, 6, 5, 3, 5], [8, 9]]
    for nodes_per_depth in (1, 2):
        drafter = EagleDrafter(head, BOUNDARIES, nodes_per_depth)
        for request, tokens in enumerate(texts):
            drafter.begin(request, 64)
            observe(drafter, target, tokens, request=request)
        jobs = [DraftJob(request, tokens, 1, 2 + request, GREEDY, True) for request, tokens in enumerate(texts)]
        for draft, job in zip(drafter.propose(jobs), jobs, strict=True):
            alone = fresh(head, target, list(job.tokens), nodes_per_depth)
            assert draft.tokens == propose(alone, job.tokens, job.draft_len, GREEDY).tokens


def test_nothing_is_drafted_before_the_target_showed_its_states(head, target):
    drafter = EagleDrafter(head, BOUNDARIES)
    drafter.begin(0, 64)
    assert propose(drafter, [1, 2, 3], 2, GREEDY) == EMPTY_DRAFT
    tokens = [1, 2, 3, 4, 5]
    hidden = {boundary: states[:2] for boundary, states in states_of(target, tokens).items()}
    drafter.observe(Observation(0, tokens, hidden, cached=2))  # a part of the prompt
    assert propose(drafter, tokens, 2, GREEDY) == EMPTY_DRAFT
    observe(drafter, target, tokens, 2)
    assert propose(drafter, tokens, 2, GREEDY).tokens == propose(fresh(head, target, tokens), tokens, 2, GREEDY).tokens


def test_prefix_that_was_never_shown_is_done_without(head, target):
    tokens = list(range(20, 40))
    drafter = EagleDrafter(head, BOUNDARIES)
    drafter.begin(0, 64)
    observe(drafter, target, tokens, 8)  # the first 8 came from a cache
    assert len(propose(drafter, tokens, 3, GREEDY)) == 3
    longer = [*tokens, 1, 2, 3, 4]
    observe(drafter, target, longer, len(tokens) + 1)  # a round was missed
    assert len(propose(drafter, longer, 3, GREEDY)) == 3


def test_unread_states_are_bounded(head, target, monkeypatch):
    monkeypatch.setattr("pilotfish.drafters.eagle.CATCH_UP_ROWS", 5)
    tokens = [random.Random(0).randrange(VOCAB) for _ in range(40)]
    drafter = EagleDrafter(head, BOUNDARIES)
    drafter.begin(0, 64)
    for end in range(3, 41):
        observe(drafter, target, tokens[:end], end - 2 if end > 3 else 0)
        assert drafter._texts[0].unread < 5
    assert propose(drafter, tokens, 3, GREEDY).tokens == propose(fresh(head, target, tokens), tokens, 3, GREEDY).tokens


def test_ended_request_leaves_nothing(head, target):
    drafter = fresh(head, target, [1, 2, 3])
    drafter.end(0)
    drafter.begin(0, 64)
    assert propose(drafter, [1, 2, 3], 2, GREEDY) == EMPTY_DRAFT
