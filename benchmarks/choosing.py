"""Expected against measured speed: the tables and plots of docs/choosing.md, from reports of `pilotfish bench speed`.

    pilotfish bench speed --method ngram -k 4 --json > ngram-4.json
    python benchmarks/choosing.py ngram-4.json [more.json ...] [--plots docs/images]

Each report carries what the formula needs: counts and drafting time of the speculative side, the plain side's step, and
the passes of the target by number of rows, which were timed apart from both. Exit code 1 if an overall prediction is
off by more than a tenth.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.bench.expected import ExpectedSpeed, expected_speed
from pilotfish.bench.plots import bars, lines, standalone
from pilotfish.bench.tune import Candidate

TOLERANCE = 0.1
HEADINGS = ("drafter", "T", "category", "E", "k", "c k", "v k", "expected", "measured", "off by")


class Line(NamedTuple):
    """One line of the table."""

    drafter: str
    temperature: float
    category: str
    expected: ExpectedSpeed
    measured: float

    @property
    def error(self) -> float:
        return self.expected.speedup / self.measured - 1

    def cells(self) -> list[str]:
        terms = self.expected
        return [
            self.drafter,
            f"{self.temperature:g}",
            self.category,
            f"{terms.tokens_per_round:.2f}",
            f"{terms.drafted_per_round:.2f}",
            f"{terms.draft_cost:.3f}",
            f"{terms.row_cost:.3f}",
            f"{terms.speedup:.2f}x",
            f"{self.measured:.2f}x",
            f"{self.error:+.1%}",
        ]


def lines_of(report: Mapping[str, Any]) -> Iterator[Line]:
    """The overall figures of each temperature, then those of its categories."""
    drafter = Candidate(report["settings"]["speculative_config"]).name
    for temperature in report["temperatures"]:
        for category, figures in (("overall", temperature["overall"]), *temperature["categories"].items()):
            expected = expected_speed(figures, report["pass_costs"])
            yield Line(drafter, temperature["temperature"], category, expected, figures["speedup"])


def write_plots(directory: Path, reports: list[dict[str, Any]], table: list[Line]) -> None:
    """Speedups expected and measured, and the cost of a pass in each report."""
    directory.mkdir(parents=True, exist_ok=True)
    overall = [line for line in table if line.category == "overall"]
    speedups = bars(
        "Speedup over plain decoding",
        "x",
        [f"{line.drafter}, T={line.temperature:g}" for line in overall],
        {
            "expected": [line.expected.speedup for line in overall],
            "measured": [line.measured for line in overall],
        },
    )
    first = reports[0]["pass_costs"]
    series = {"measured": [(each["rows"] - 1.0, each["seconds"] * 1e3) for each in first["passes"]]}
    if all(each["roofline_seconds"] is not None for each in first["passes"]):
        series["roofline"] = [(each["rows"] - 1.0, each["roofline_seconds"] * 1e3) for each in first["passes"]]
    costs = lines(f"Cost of a pass after {first['context']} tokens", "ms", "drafted tokens verified", series)
    (directory / "expected_speed.svg").write_text(standalone(speedups), encoding="utf-8")
    (directory / "pass_cost.svg").write_text(standalone(costs), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--plots", type=Path, help="directory to write the plots to")
    parser.add_argument("--overall", action="store_true", help="leave out the categories")
    arguments = parser.parse_args()
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.reports]
    table = [line for report in reports for line in lines_of(report)]
    if arguments.overall:
        table = [line for line in table if line.category == "overall"]
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"| --- | ---: | --- |{' ---: |' * (len(HEADINGS) - 3)}")
    for line in table:
        print(f"| {' | '.join(line.cells())} |")
    for report in reports:
        print(
            f"\n`{report['command']}`, commit {report['commit']}, {report['hardware']['processor']}, {report['date']}"
        )
    if arguments.plots is not None:
        write_plots(arguments.plots, reports, table)
    return 1 if any(abs(line.error) > TOLERANCE for line in table if line.category == "overall") else 0


if __name__ == "__main__":
    sys.exit(main())
