"""Losses by their formulas, acceptance against brute force, projections against simulation."""

import random
from dataclasses import replace

import pytest
import torch

from pilotfish.errors import InvalidInputError
from pilotfish.train.acceptance import measure_acceptance
from pilotfish.train.losses import acceptance, cross_entropy, loss_rows
from pilotfish.train.options import TrainOptions
from pilotfish.train.packs import Packs
from pilotfish.train.projection import RoundCosts, project, tokens_per_round
from pilotfish.train.teacher import Teacher
from pilotfish.train.vocabulary import DraftVocabulary
from tests.train.tiny_data import LAYERS, VOCAB, open_data
from tests.train.tiny_training import draft, exit_adapter, head

IDS = DraftVocabulary(torch.arange(0, VOCAB, 2), 0.5)


def laws(rows=20, vocab=12, mass=1.0):
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(rows, vocab, generator=generator).mul(2).softmax(-1) * mass
    return torch.randn(rows, vocab, generator=generator), target


@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_losses_are_what_their_formulas_say(mass):
    logits, target = laws(mass=mass)
    draft_probs = logits.softmax(-1)
    accepted = torch.minimum(draft_probs, target).sum(-1)
    whole = target / mass
    divergence = (whole * (whole.log() - draft_probs.log())).sum(-1)
    share = torch.exp(-3 * accepted)
    assert torch.allclose(loss_rows("ce", logits, target), -(whole * draft_probs.log()).sum(-1), atol=1e-5)
    assert torch.allclose(loss_rows("tv", logits, target), 1 - accepted, atol=1e-6)
    assert torch.allclose(loss_rows("nla", logits, target), -accepted.log(), atol=1e-5)
    assert torch.allclose(loss_rows("lk", logits, target), share * divergence + (1 - share) * (1 - accepted), atol=1e-5)
    if mass == 1.0:
        distance = (draft_probs - target).abs().sum(-1) / 2
        assert torch.allclose(acceptance(draft_probs, target), 1 - distance, atol=1e-6)


@pytest.mark.parametrize("kind", ["ce", "tv", "nla", "lk"])
def test_every_loss_leads_to_the_targets_law(kind):
    logits, target = laws(vocab=6)
    logits.requires_grad_(True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - step / 400)
        optimizer.zero_grad()
        loss_rows(kind, logits, target).sum().backward()
        optimizer.step()
    assert float(acceptance(logits.detach().softmax(-1), target).min()) > 0.98
    assert torch.isfinite(cross_entropy(logits, target)).all()


@pytest.fixture(scope="module")
def packs(world):
    held_out = Packs(
        open_data(world.data, world.target), "held_out", range(LAYERS + 1), batch_tokens=150, max_length=64
    )
    return [held_out.read(places) for places in held_out.in_order(200)]


def brute_force(student, teacher, pack, depths, ids):
    """The figures of `Acceptance`, start by start."""
    predicted = [{} for _ in range(depths)]
    found = student(pack, depths)
    for depth in range(depths):
        each = found[depth] if student.unrolls else found[0]
        for law, logits in zip(each.laws.tolist(), each.logits, strict=True):
            predicted[depth][law] = logits.softmax(-1)
    whole = teacher.whole(pack.hidden[LAYERS])
    starts = [set(rows.tolist()) for rows in pack.starts(depths)]
    best = whole.best.tolist()
    rows = []
    for start in sorted(starts[0]):
        reached, weight, row = True, 1.0, []
        for depth in range(depths):
            if start not in starts[depth]:
                break
            law = start + depth + 1
            probs, text = predicted[depth][law], int(pack.following[law])
            choice = int(ids[probs.argmax()])
            row.append((choice == best[law], reached, weight, float(torch.minimum(probs, whole.probs[law]).sum())))
            column = (ids == text).nonzero()
            said = float(probs[column[0, 0]]) if len(column) else 0.0
            text_prob = float(teacher.whole(pack.hidden[LAYERS][law : law + 1], pack.following[law : law + 1]).text)
            reached = reached and choice == best[law] == text
            weight *= min(1.0, said / text_prob)
        rows.append(row)
    return rows


@pytest.mark.parametrize("make", [head, draft, exit_adapter], ids=["head", "draft", "exit"])
def test_acceptance_is_what_counting_start_by_start_gives(world, packs, make):
    student = make(world.files, IDS).eval()
    teacher = Teacher(world.files.config, world.files.weights, student.examined_ids)
    with torch.no_grad():
        rows = [row for pack in packs for row in brute_force(student, teacher, pack, 3, student.examined_ids)]
        found = measure_acceptance(student, teacher, packs, 3)
    for depth in range(3):
        at = [row[depth] for row in rows if len(row) > depth]
        assert found.starts[depth] == len(at)
        assert found.agreement[depth] == pytest.approx(sum(agrees for agrees, *_ in at) / len(at))
        reached = [agrees for agrees, reached, *_ in at if reached]
        assert found.greedy[depth] == pytest.approx(sum(reached) / max(len(reached), 1))
        total = sum(weight for _, _, weight, _ in at)
        assert found.sampled[depth] == pytest.approx(sum(w * overlap for _, _, w, overlap in at) / total, rel=1e-4)


def test_walk_delivers_every_answer_token_and_knows_a_perfect_drafter(world, packs):
    perfect = draft(world.files, IDS, layers=tuple(range(LAYERS))).eval()
    teacher = Teacher(world.files.config, world.files.weights, perfect.examined_ids)
    found = measure_acceptance(perfect, teacher, packs, 4)
    assert found.agreement == (1.0,) * 4
    assert found.walked[0] == pytest.approx(2.0, abs=0.05), "all but a last, odd token come in pairs"
    assert found.walked[3] > 3.8
    sampled_only = [replace(pack, temperatures=(1.0,) * len(pack.temperatures)) for pack in packs]
    assert measure_acceptance(perfect, teacher, sampled_only, 4).walked is None


def test_projected_tokens_per_round_are_those_of_simulated_rounds():
    shares = (0.6, 0.5, 0.8, 0.3)
    dice = random.Random(0)
    for draft_len in range(1, 5):
        delivered = 0
        for _ in range(20_000):
            accepted = 0
            while accepted < draft_len and dice.random() < shares[accepted]:
                accepted += 1
            delivered += accepted + 1
        assert tokens_per_round(shares)[draft_len - 1] == pytest.approx(delivered / 20_000, rel=0.02)


def test_projection_finds_the_length_that_is_fastest_by_the_costs():
    costs = RoundCosts(plain=10.0, passes={1: 9.0, 3: 10.0, 9: 22.0}, draft=1.0, around=0.5)
    assert costs.round_seconds(2) == pytest.approx(10.0 + 0.5 + 2.0)
    assert costs.round_seconds(5) == pytest.approx(16.0 + 0.5 + 5.0)
    assert costs.pass_seconds(15) == pytest.approx(34.0), "goes on straight"
    found = project(tokens_per_round((0.7, 0.6, 0.5, 0.4)), costs)
    assert found.draft_len == 2
    assert found.speedup == pytest.approx((1 + 0.7 + 0.42) * 10.0 / 12.5)
    assert found.speedups[0] == pytest.approx(1.7 * 10.0 / (9.5 + 0.5 + 1.0))


def test_options_out_of_range_are_refused_by_name():
    for name, value in {
        "batch_tokens": 0, "epochs": -1.0, "steps": 0, "max_length": 2, "loss_warmup": 1.5, "precision": "int4",
        "warmup_steps": -1, "patience": 0,
    }.items():  # fmt: skip
        with pytest.raises(InvalidInputError, match=name):
            TrainOptions(**{name: value})


def test_learning_rate_rises_and_falls_to_a_tenth():
    options = TrainOptions(learning_rate=1.0, warmup_steps=10)
    rates = [options.learning_rate_at(step, 100) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[9] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
