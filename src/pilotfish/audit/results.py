"""What an audit found: one `Level` per question asked, and the report of a run. Frozen records, no logic of tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEVELS = ("theory", "law", "identity", "noise", "endpoint")


@dataclass(frozen=True, slots=True)
class LawPlot:
    """Observed and expected shares of the outcomes of one test."""

    title: str
    observed: tuple[float, ...]
    expected: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AcceptancePlot:
    """Drafted tokens delivered by their depth in the draft, per round."""

    title: str
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """What one level of the audit did and found.

    Attributes:
        name: one of `LEVELS`.
        tests: how many assertions were made.
        samples: how many observations they rest on; exact tests count the cases they went through.
        false_alarm_rate: probability that correct code fails this level.
        smallest_effect: for each group of tests the smallest effect that it would have seen with probability 0.99;
            the group's name says what is measured.
        findings: what is wrong, one sentence each. Empty is a pass.
        notes: what else is worth knowing, such as what could not be tested.
        p_values: of the statistical tests, for the report.
    """

    name: str
    tests: int
    samples: int
    false_alarm_rate: float
    smallest_effect: Mapping[str, float]
    findings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    p_values: tuple[float, ...] = ()
    laws: tuple[LawPlot, ...] = ()
    acceptance: tuple[AcceptancePlot, ...] = ()
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.findings

    def as_record(self) -> dict[str, Any]:
        """The level as `--json` prints it."""
        return {
            "name": self.name,
            "passed": self.passed,
            "tests": self.tests,
            "samples": self.samples,
            "false_alarm_rate": self.false_alarm_rate,
            "smallest_effect": dict(self.smallest_effect),
            "findings": list(self.findings),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All levels of a run."""

    levels: tuple[Level, ...]
    seed: int
    size: str
    subject: str = field(default="pilotfish")

    @property
    def passed(self) -> bool:
        return all(level.passed for level in self.levels)

    def as_record(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return {"passed": self.passed, "levels": [level.as_record() for level in self.levels]}
