"""Puts what the auditor prints into `docs/lossless.md`: a run's own output, and what each control was caught by.

pilotfish audit --seed 20261129 > run.txt
pilotfish audit --self-test --seed 1 --json > controls.json
python benchmarks/lossless_page.py run.txt controls.json
"""

import argparse
import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "lossless.md"


def between(page: str, name: str, text: str) -> str:
    """The page with the part between two markers replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda found: found[1] + text + found[2], page)
    if count != 1:
        raise SystemExit(f"{PAGE} has {count} parts called {name!r}: expected one")
    return replaced


def controls_table(record: dict[str, list[dict[str, str | list[str]]]]) -> str:
    rows = ["| broken decoder | level | what the level said first |", "|---|---|---|"]
    for row in record["controls"]:
        finding = re.sub(r"(\[[^]]*\])", r"`\1`", str(row["findings"][0]) if row["findings"] else "MISSED")
        rows.append(f"| {row['control']} | {row['level']} | {finding} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("controls", type=Path)
    parser.add_argument("--command", required=True, help="that made the run, with whatever is to be said about it")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    printed = arguments.run.read_text(encoding="utf-8").strip()
    page = between(page, "run", f"One run, `{arguments.command}`:\n\n```\n{printed}\n```\n")
    page = between(page, "controls", controls_table(json.loads(arguments.controls.read_text(encoding="utf-8"))))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
