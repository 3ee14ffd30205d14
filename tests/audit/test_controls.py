"""Every known-bad decoder is caught, by the level meant for it, and for the right reason."""

import json
from dataclasses import replace

import pytest

from pilotfish.audit.controls import CONTROLS
from pilotfish.audit.self_test import self_test
from pilotfish.audit.subject import Subject
from tests.audit.command import run_audit

LAW = "is not the target's"
REASONS = {
    "resample noise shared with draft noise": ("depend on each other",),
    "one uniform used twice": ("joint law",),
    "q passed without the top-k the draft was drawn with": ("reported draft law", LAW),
    "softmax q for an argmax draft": ("not drawn from the reported law", LAW),
    "q computed in bfloat16": ("reported draft law",),
    "a draft cut after looking at the drawn token": (LAW,),
    "residual not renormalised": ("joint law",),
    "bonus drawn from the wrong row": ("joint law",),
    "penalties that see rejected tokens": ("reported draft law", LAW),
    "temperature applied to p only": ("reported draft law", LAW),
    "tree children visited in probability order": ("joint law",),
    "u <= p accepting probability zero": ("of probability 0",),
    "a seed that covers only half of the draws": ("second time",),
}


@pytest.fixture(scope="module")
def shown():
    process = run_audit("--self-test", "--json", "--seed", "3")
    assert process.returncode == 0, process.stderr
    return {row["control"]: row for row in json.loads(process.stdout)["controls"]}


def test_controls_are_the_thirteen_of_the_plan(shown):
    assert list(shown) == list(REASONS)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_control_is_caught_by_the_level_meant_for_it(control, shown):
    row = shown[control.name]
    assert (row["level"], row["caught"], row["runs"]) == (control.level, 1, 1)
    for reason in REASONS[control.name]:
        assert any(reason in finding for finding in row["findings"]), reason


def test_self_test_finds_nothing_wrong_with_correct_code():
    names = ("residual not renormalised", "resample noise shared with draft noise")
    honest = [replace(control, subject=Subject()) for control in CONTROLS if control.name in names]
    assert [one.findings for one in self_test(3, honest)] == [(), ()]
