"""Losses, starts and shapes of drafters compared on one data set: the tables of docs/train.md.

    python benchmarks/train_ablation.py DATA OUTPUT [--arms losses|starts|kinds|temperatures ...] [--steps 400]
        [--model smollm2-135m-instruct] [--json figures.json] [--resume]

Every arm of a group is trained with the same seed on the same packs for the same number of steps, and measured on the
same held-out text; what differs is in its name. `kinds` also builds a back-off table from the same data. Each arm is a
run directory under OUTPUT that can be gone on with. Times count training only, as the log has them; they mean something
on a quiet machine.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.bench.provenance import provenance
from pilotfish.train.draft import DraftStudent
from pilotfish.train.exit import ExitStudent
from pilotfish.train.head import HeadOptions, HeadStudent
from pilotfish.train.options import TrainOptions
from pilotfish.train.pool_session import make_pool
from pilotfish.train.session import Session, StudentMaker, train_drafter

SEED = 0
TABLES = {
    # What token recycling would start from, were its table seeded: it remembers by the last token and the last two.
    "table of contexts 1 and 2": (1, 2),
    "back-off table of contexts 1 to 3": (1, 2, 3),
    "back-off table of contexts 1 to 4": (1, 2, 3, 4),
}


def head(**shape: Any) -> StudentMaker:
    return lambda files, ids: HeadStudent(files.config, files.weights, ids.ids, HeadOptions(**shape))


def two_layers(**shape: Any) -> StudentMaker:
    """The shape of the issue's orientation run: two layers, started from a low and the last layer of the target."""

    def make(files: Any, ids: Any) -> Any:
        last = files.config.num_layers - 1
        return head(layers=2, start_layers=(1, last), **shape)(files, ids)

    return make


def draft(layers: Callable[[int], tuple[int, ...]]) -> StudentMaker:
    return lambda files, ids: DraftStudent(
        files.config, files.weights, ids.ids, layers(files.config.num_layers), files.tokenizer_path, files.eos_ids
    )


def exit_adapter(share: float, rank: int) -> StudentMaker:
    return lambda files, ids: ExitStudent(
        files.config, files.weights, ids.ids, max(1, round(share * files.config.num_layers)), rank
    )


@dataclass(frozen=True)
class Arm:
    """One training."""

    make: StudentMaker
    options: Mapping[str, Any] = field(default_factory=dict)


GROUPS: dict[str, dict[str, Arm]] = {
    "losses": {
        f"{loss}, cross-entropy first {warm:.0%}": Arm(two_layers(), {"loss": loss, "loss_warmup": warm})
        for loss, warm in (("ce", 1.0), ("tv", 0.0), ("tv", 0.5), ("nla", 0.5), ("lk", 0.0), ("lk", 0.5))
    },
    "temperatures": {
        f"law at {temperature}": Arm(two_layers(), {"loss": "ce", "law_temperature": temperature})
        for temperature in (1.0, 0.7, 0.5)
    },
    "starts": {
        "one layer, random start": Arm(head()),
        "one layer, from layer 1": Arm(head(start_layers=(1,))),
        "two layers, random start": Arm(head(layers=2)),
        "two layers, from layer 1 and the last": Arm(two_layers()),
        "the same, normed output fed back": Arm(two_layers(norm_output=True)),
        "the same, normed residual": Arm(two_layers(norm_before_residual=True)),
        "the same, the target's LM head": Arm(two_layers(share_lm_head=True)),
        "the same, one unrolled step": Arm(two_layers(), {"depths": 1}),
    },
    "kinds": {
        "head, two layers": Arm(two_layers()),
        "draft, layers 0, 1 and the last two": Arm(draft(lambda count: (0, 1, count - 2, count - 1))),
        "exit adapter at a fifth": Arm(exit_adapter(0.2, 256)),
        "exit adapter at a half": Arm(exit_adapter(0.5, 256)),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--arms", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--check-prompts", type=int, default=8)
    parser.add_argument("--resume", action="store_true", help="go on with arms that were begun")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for group in given.arms:
        for name, arm in GROUPS[group].items():
            rows.append({"group": group, "arm": name, **_train(given, group, name, arm)})
            print(_line(rows[-1]), flush=True)
        if group == "kinds":
            for table, orders in TABLES.items():
                rows.append({"group": group, "arm": table, **_table(given, orders)})
                print(_line(rows[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": rows, **provenance(SEED)}, indent=2) + "\n", encoding="utf-8")


def _train(given: argparse.Namespace, group: str, name: str, arm: Arm) -> dict[str, Any]:
    output = given.output / group / name.replace(" ", "-").replace(",", "").replace("%", "")
    session = Session(
        given.model,
        given.data,
        output,
        given.draft_vocab_size,
        device=given.device,
        weights=given.weights,
        check_prompts=given.check_prompts,
        resume=given.resume,
        origin=provenance(SEED),
    )
    told = {"steps": given.steps, "batch_tokens": given.batch_tokens, "patience": None, "seed": SEED}
    told |= {"evaluate_every": max(1, given.steps // 4), **arm.options}
    outcome = train_drafter(session, TrainOptions(**told), arm.make)
    assert outcome is not None, "one process"
    return outcome.as_dict()


def _table(given: argparse.Namespace, orders: Sequence[int]) -> dict[str, Any]:
    return make_pool(
        given.model,
        given.data,
        given.output / "kinds" / f"table-{len(orders)}",
        orders=orders,
        max_bytes=4_000_000,
        min_count=2,
        sizes=8,
        origin=provenance(SEED),
    )


def _line(row: Mapping[str, Any]) -> str:
    if "held_out" not in row:
        rounds = " ".join(f"{value:.3f}" for value in row["tokens_per_round"])
        return f"| {row['arm']} | {row['file_bytes'] / 1e6:.1f} MB | tokens per round, trees of 1 to 8: {rounds} |"
    held_out, check = row["held_out"], row["check"]
    greedy, sampled = (" / ".join(f"{value:.3f}" for value in held_out[key][:3]) for key in ("greedy", "sampled"))
    measured = "" if check is None else f"{check['speedup']:.2f}x"
    return (
        f"| {row['arm']} | {row['file_bytes'] / 1e6:.1f} MB | {row['seconds'] / 60:.1f} min | "
        f"{row['tokens'] / row['seconds']:.0f} tokens/s | {greedy} | {sampled} | "
        f"{held_out['projected_speedup']:.2f}x | {measured} |"
    )


if __name__ == "__main__":
    main()
