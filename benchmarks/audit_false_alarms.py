"""How often the auditor cries wolf, and how surely it sees one: fresh-seed runs of correct and of broken code.

Prints one JSON line per run, so that a long campaign can be cut into slices:

    python benchmarks/audit_false_alarms.py honest --first 0 --runs 200     # the local levels at CI size
    python benchmarks/audit_false_alarms.py controls --first 0 --runs 20    # every known-bad control
"""

import argparse
import json
import time

import torch

from pilotfish.audit.run import LOCAL_LEVELS, audit
from pilotfish.audit.self_test import self_test


def honest(seed: int, levels: list[str]) -> dict[str, object]:
    report = audit(levels, size="ci", seed=seed, workers=1)
    return {
        "seed": seed,
        "passed": report.passed,
        "levels": list(levels),
        "samples": sum(level.samples for level in report.levels),
        "smallest_p": min((p for level in report.levels for p in level.p_values), default=None),
        "findings": [finding for level in report.levels for finding in level.findings],
    }


def controls(seed: int) -> dict[str, object]:
    caught = self_test(seed)
    missed = [one.control for one in caught if not one.findings]
    return {"seed": seed, "controls": len(caught), "caught": len(caught) - len(missed), "missed": missed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("honest", "controls"))
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--levels", default=",".join(LOCAL_LEVELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(arguments.first, arguments.first + arguments.runs):
        began = time.monotonic()
        found = honest(seed, arguments.levels.split(",")) if arguments.what == "honest" else controls(seed)
        print(json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
