"""The auditor audited: every known-bad control must be caught, and by the level that is meant for it.

Owns which part of a level a control is shown to: the plans or cases that can meet its defect, at the false-alarm rate
of the whole run, so that being caught here means being caught there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pilotfish.audit.controls import CONTROLS, Control
from pilotfish.audit.identity import run_identity
from pilotfish.audit.law import MAIN_TESTS, run_law
from pilotfish.audit.noise import run_noise
from pilotfish.audit.options import BY_NAME
from pilotfish.audit.plans import Plan
from pilotfish.audit.results import Level
from pilotfish.audit.theory import run_theory

TOKENS = 10_000
"""Tokens that a control of the law level is given; the standard run gives sixteen times as many to a core plan."""
REPLAYS = 200


@dataclass(frozen=True, slots=True)
class Caught:
    """What became of one control.

    Attributes:
        level: the level meant for it.
        findings: what that level said; empty if it saw nothing.
    """

    control: str
    level: str
    findings: tuple[str, ...]


def show(control: Control, seed: int) -> Level:
    """Runs the part of the level that is meant for a control."""
    subject = control.subject
    if control.level == "theory":
        return run_theory(subject, "ci", seed, control.cases)
    if control.level == "noise":
        return run_noise(subject, "ci", seed)
    if control.level == "identity":
        return run_identity(subject, "ci", seed)
    setting = BY_NAME[control.option]
    vocab_size = 8 if setting.looks_back else 5
    plan = Plan(control.rule, control.drafter, control.option, 2, vocab_size, 1, TOKENS, REPLAYS, core=True, tables=4)
    return run_law(subject, [plan], seed, share=2 * MAIN_TESTS)


def self_test(seed: int, controls: Sequence[Control] = CONTROLS) -> list[Caught]:
    """Shows every control to its level."""
    found = []
    for control in controls:
        level = show(control, seed)
        found.append(Caught(control.name, control.level, level.findings))
    return found
