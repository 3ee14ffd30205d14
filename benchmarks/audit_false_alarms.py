"""How often the auditor cries wolf, and how surely it sees one: fresh-seed runs of correct and of broken parts.

One JSON line per run. With --output lines are appended to a file and seeds that it already has are left out, so that a
long campaign can be stopped at any time and taken up again:

    python benchmarks/audit_false_alarms.py controls --runs 20            # every known-bad control
    python benchmarks/audit_false_alarms.py honest --runs 200             # the local levels at CI size
    python benchmarks/audit_false_alarms.py honest-servers --runs 50      # mock servers with the right law
    python benchmarks/audit_false_alarms.py biased-servers --runs 20      # 10/60/30 that comes out as 10.16/63.04/26.80

The servers are those of the tests: run from the root of the repository.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pilotfish.audit.endpoint import run_endpoint
from pilotfish.audit.endpoint_client import Server
from pilotfish.audit.endpoint_sampling import EndpointPlan
from pilotfish.audit.results import Level
from pilotfish.audit.run import LOCAL_LEVELS, audit
from pilotfish.audit.self_test import self_test


def honest(seed: int) -> dict[str, Any]:
    report = audit(LOCAL_LEVELS, size="ci", seed=seed, workers=1)
    return {
        "passed": report.passed,
        "tests": sum(level.tests for level in report.levels),
        "samples": sum(level.samples for level in report.levels),
        "smallest_p": min((p for level in report.levels for p in level.p_values), default=None),
        "findings": [finding for level in report.levels for finding in level.findings],
    }


def controls(seed: int) -> dict[str, Any]:
    caught = self_test(seed)
    missed = [one.control for one in caught if not one.findings]
    return {"passed": not missed, "controls": len(caught), "missed": missed}


def servers(law: str, seed: int) -> dict[str, Any]:
    """A server against the law it should have, and against a second server; whether both looks end as they should."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.audit import mock_server

    def known(prompt: str, before: tuple[str, ...]) -> dict[str, float]:
        return dict(zip(mock_server.WORDS, mock_server.HONEST, strict=True))

    plan = EndpointPlan(tokens=20_000, per_request=128, seed=seed)
    levels: list[Level] = []
    with (
        mock_server.mock_server(getattr(mock_server, law), salt=2 * seed) as url,
        mock_server.mock_server(salt=2 * seed + 1) as other,
    ):
        levels.append(run_endpoint(Server(url), known, plan))
        levels.append(run_endpoint(Server(url), Server(other), plan))
    right = [level.passed == (law == "HONEST") for level in levels]
    return {
        "passed": all(right),
        "known_law": right[0],
        "two_servers": right[1],
        "samples": [level.samples for level in levels],
        "findings": [finding for level in levels for finding in level.findings],
    }


CAMPAIGNS: dict[str, Callable[[int], dict[str, Any]]] = {
    "honest": honest,
    "controls": controls,
    "honest-servers": lambda seed: servers("HONEST", seed),
    "biased-servers": lambda seed: servers("BIASED", seed),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CAMPAIGNS)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--output", type=Path, help="append to this file; seeds it has are not run again")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    output: Path | None = arguments.output
    known = output.read_text().splitlines() if output is not None and output.exists() else []
    done = {record["seed"] for record in map(json.loads, known)}
    for seed in range(arguments.first, arguments.first + arguments.runs):
        if seed in done:
            continue
        began = time.monotonic()
        record = {"seed": seed, **CAMPAIGNS[arguments.what](seed), "seconds": round(time.monotonic() - began, 1)}
        line = json.dumps(record)
        print(line, flush=True)
        if output is not None:
            with output.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
