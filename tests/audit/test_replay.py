"""The replay agrees with the decoder as it is, and sees what no affordable count of outcomes would."""

import pytest

from pilotfish.audit.law import run_law
from pilotfish.audit.plans import Plan
from pilotfish.audit.statistics import smallest_share
from pilotfish.audit.subject import Subject
from pilotfish.terms import Verdict
from pilotfish.verify import RULES, Rule


def plan(rule, drafter="draft_model", option="no option", replays=12, tokens=24):
    vocab_size, order = (16, 0) if drafter in ("early_exit", "eagle") else (8, 1)
    return Plan(rule, drafter, option, 3, vocab_size, order, tokens, replays)


@pytest.mark.parametrize(
    ("rule", "drafter", "option"),
    [
        ("rejection", "eagle", "no option"),
        ("block", "early_exit", "no option"),
        ("traversal", "draft_model", "structured_outputs + top_k 3"),
    ],
)
def test_replay_agrees_with_the_decoder_as_it_is(rule, drafter, option):
    """Every rule, drafter and option is met by the run of `test_levels.py`."""
    level = run_law(Subject(), [plan(rule, drafter, option)], seed=3)
    assert level.findings == ()
    assert level.smallest_effect["total variation, a round's tokens, replayed, plans of one rule"] < 0.5


def errs_now_and_then(share):
    """Block verification that takes the most probable token in a share of the rounds."""

    def verify(draft, target_probs, accept, resample):
        right = RULES["block"].verify(draft, target_probs, accept, resample)
        if not 0.5 < resample < 0.5 + share:
            return right
        return Verdict(right.path, int(target_probs[0 if not right.path else right.path[-1] + 1].argmax()))

    return Subject(rules={**RULES, "block": Rule("block", False, verify)})


def test_replay_sees_a_rule_that_errs_in_one_round_of_five():
    """Of 60 rounds; a wrong token differs from the right one in half of the cases at least: seen with 0.998."""
    level = run_law(errs_now_and_then(0.2), [plan("block", replays=60, tokens=130)], seed=1)
    assert ["own numbers" in finding for finding in level.findings] == [True]


def test_smallest_share_is_the_one_that_shows_with_the_power_promised():
    assert 1 - (1 - smallest_share(459)) ** 459 == pytest.approx(0.99)
    assert smallest_share(459) == pytest.approx(0.01, rel=1e-2)
    assert smallest_share(0) == 1.0
