"""Trained drafters side by side: what their trainings projected for this machine as it is now, and what they give.

    python benchmarks/compare_drafters.py DATA DIR [DIR ...] [--model smollm2-135m-instruct] [--weights bfloat16]
        [--prompts 16] [--tokens 64] [--repeats 3] [--json figures.json]

DIRs are directories that `pilotfish train head`, `draft`, `exit` and `pool` wrote, DATA the data set they learned from.
Costs of rounds are measured anew, because a training's were measured when other things ran; with the acceptance that
the training found on held-out text they give the draft length and the projected speedup. Then all sides answer held-out
prompts by turns, plain decoding first: a trained drafter at that length, a table with trees of 8. Ids must be equal.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.bench.provenance import provenance
from pilotfish.engine.llm import LLM
from pilotfish.models.files import resolve
from pilotfish.train.costs import Speed, decode_speed, measure_costs
from pilotfish.train.dataset import DataSet
from pilotfish.train.packs import Packs
from pilotfish.train.projection import project
from pilotfish.train.session import PROMPTS_FOR_COSTS, held_out_prompts

TREE = 8
TEMPERATURES = (0.0, 1.0)


@dataclass
class Side:
    """One drafter; the facts of its training, and what it delivered, by temperature."""

    name: str
    llm: LLM
    facts: dict[str, Any]
    speeds: dict[float, list[Speed]] = field(default_factory=lambda: {each: [] for each in TEMPERATURES})
    identical: bool = True

    def rate(self, temperature: float) -> float:
        speeds = self.speeds[temperature]
        return sum(each.tokens for each in speeds) / sum(each.seconds for each in speeds)

    def tokens_per_round(self, temperature: float) -> float:
        speeds = self.speeds[temperature]
        return sum(each.tokens for each in speeds) / sum(each.rounds for each in speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("drafters", type=Path, nargs="+")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--weights", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    files = resolve(given.model)
    plain = LLM(given.model, speculative_config=None, weights=given.weights)
    data = DataSet(given.data, fingerprint=files.fingerprint)
    packs = Packs(data, "held_out", (), batch_tokens=1024, max_length=1024)
    prompts = held_out_prompts(packs, data)[: given.prompts]
    sides = [Side("plain", plain, {})]
    sides += [_side(path, plain, files.fingerprint, prompts[:PROMPTS_FOR_COSTS]) for path in given.drafters]
    for turn in range(given.repeats):
        for temperature in TEMPERATURES:
            expected = None
            for side in sides:
                speed, answers = decode_speed(
                    side.llm, prompts, max_tokens=given.tokens, temperature=temperature, ignore_eos=True
                )
                side.speeds[temperature].append(speed)
                expected = expected or answers
                side.identical = side.identical and answers == expected
        print(f"turn {turn + 1} of {given.repeats}", flush=True)
    rows = [_row(side, sides[0]) for side in sides[1:]]
    for row in rows:
        print(_line(row))
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": rows, **provenance(0)}, indent=2) + "\n", encoding="utf-8")


def _side(path: Path, plain: LLM, fingerprint: str, prompts: Sequence[Sequence[int]]) -> Side:
    record = json.loads((path / "training.json").read_text(encoding="utf-8"))
    method = json.loads((path / "drafter.json").read_text(encoding="utf-8"))["method"]
    facts: dict[str, Any] = {"size_mb": round(sum(each.stat().st_size for each in path.glob("*.safetensors")) / 1e6, 1)}
    if method == "table":
        config = {"method": "lookup", "model": str(path), "num_speculative_tokens": TREE}
        return Side(path.name, plain.with_speculation(config), facts)
    config = {"method": method, "model": str(path)}
    projection = project(record["held_out"]["tokens_per_round"], measure_costs(plain, fingerprint, config, prompts))
    facts |= {
        "training_minutes": round(record["seconds"] / 60, 1),
        "rows_seen": record["tokens"],
        "agreement": record["held_out"]["agreement"],
        "accepted_by_depth": record["held_out"]["greedy"],
        "accepted_by_depth_sampled": record["held_out"]["sampled"],
        "draft_len": projection.draft_len,
        "projected_tokens_per_round": projection.tokens_per_round[projection.draft_len - 1],
        "projected_speedup": projection.speedup,
    }
    config["num_speculative_tokens"] = projection.draft_len
    return Side(path.name, plain.with_speculation(config), facts)


def _row(side: Side, plain: Side) -> dict[str, Any]:
    measured = {
        f"t{temperature:g}": {
            "speedup": side.rate(temperature) / plain.rate(temperature),
            "tokens_per_round": side.tokens_per_round(temperature),
        }
        for temperature in TEMPERATURES
    }
    return {"drafter": side.name, **side.facts, "measured": measured, "identical": side.identical}


def _line(row: Mapping[str, Any]) -> str:
    cells = [row["drafter"], f"{row['size_mb']} MB"]
    if "draft_len" in row:
        cells += [
            f"{row['training_minutes']} min",
            " / ".join(f"{share:.2f}" for share in row["accepted_by_depth"][:3]),
            f"k={row['draft_len']}: {row['projected_speedup']:.2f}",
        ]
    else:
        cells += ["", "", f"tree of {TREE}"]
    for measured in row["measured"].values():
        cells.append(f"{measured['speedup']:.2f} ({measured['tokens_per_round']:.2f} tokens per round)")
    return f"| {' | '.join(cells)} | {row['identical']} |"


if __name__ == "__main__":
    main()
