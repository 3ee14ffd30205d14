"""What a table of one's own domain is worth: questions of one kind, made by a template, and how well drafts meet them.

    python benchmarks/own_domain.py WORK [--general DATA] [--passes 4] [--prompts 200] [--nodes 8] [--weights bfloat16]
        [--json figures.json]

Writes questions about made-up database schemas to WORK/questions.jsonl, has the target answer them several times, a
fifth of them held out, makes a table of the answers, and decodes the held-out questions at temperatures 0 and 1: with
what the package has for the target, with the domain's table, and, where a general data set is given, with one table of
both. The data are gone on with if WORK has them. Every side drafts up to `--nodes` tokens in every round, so that
figures do not depend on the machine; ids are compared with plain decoding.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotfish.bench.provenance import provenance
from pilotfish.drafters.shipped import shipped_drafters
from pilotfish.engine.llm import LLM
from pilotfish.models.files import resolve
from pilotfish.models.loading import load_model
from pilotfish.train.costs import decode_speed
from pilotfish.train.data import generation_seconds, make_data
from pilotfish.train.dataset import DataSet
from pilotfish.train.join import join_data
from pilotfish.train.packs import Packs
from pilotfish.train.pool_session import make_pool
from pilotfish.train.prompts import prompts_checksum, read_prompts
from pilotfish.train.session import held_out_prompts
from pilotfish.train.settings import DataSettings

SEED = 0
HELD_OUT = 0.2
MAX_TOKENS = 128
ALL = 1 << 40
"""Answer tokens: as many as the prompts give."""
TABLES = {
    "orders": ("id", "customer_id", "total", "placed_on", "status"),
    "customers": ("id", "name", "city", "joined_on", "email"),
    "products": ("id", "title", "price", "category", "stock"),
    "employees": ("id", "name", "department", "salary", "hired_on"),
    "invoices": ("id", "order_id", "amount", "due_on", "paid"),
    "flights": ("id", "origin", "destination", "departs_at", "seats"),
    "books": ("id", "title", "author", "year", "copies"),
    "patients": ("id", "name", "born_on", "ward", "doctor"),
    "sensors": ("id", "place", "reading", "read_at", "unit"),
    "tickets": ("id", "subject", "opened_by", "opened_at", "priority"),
}
TASKS = (
    "lists every {a} and {b}, sorted by {c}",
    "counts the rows for each {a}",
    "finds the {n} rows with the highest {c}",
    "returns the average {c} for each {b}",
    "shows the rows whose {a} appears more than once",
    "updates {b} to a new value where {a} equals {n}",
    "deletes all rows whose {c} is lower than {n}",
    "adds an index that makes searching by {a} and {b} fast",
)


def questions(count: int) -> list[str]:
    """Different ones, the same in every run."""
    dice = random.Random(SEED)
    found = []
    for (table, columns), task in itertools.product(TABLES.items(), TASKS):
        for _ in range(4):
            a, b, c = dice.sample(columns[1:], 3)
            words = task.format(a=a, b=b, c=c, n=dice.randrange(2, 50))
            found.append(f"Write an SQL query for the table {table}({', '.join(columns)}) that {words}. Explain it.")
    return dice.sample(sorted(set(found)), count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--general", type=Path)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--weights", default="bfloat16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    files = resolve(given.model)
    llm = LLM(given.model, speculative_config=None, weights=given.weights, threads=given.threads)
    domain = _data(given)
    tables = {"without a table": None, "the package's table": shipped_drafters(files.fingerprint)[0]["model"]}
    tables["the domain's table"] = _table(given, domain, "domain-table")
    if given.general is not None:
        if not (given.work / "joined").exists():
            join_data(given.work / "joined", [given.general, domain], provenance(SEED))
        tables["one table of both"] = _table(given, given.work / "joined", "both-table")
    data = DataSet(domain, fingerprint=files.fingerprint)
    packs = Packs(data, "held_out", (), batch_tokens=1024, max_length=1024)
    prompts = [list(prompt) for prompt in dict.fromkeys(map(tuple, held_out_prompts(packs, data)))]
    result = {
        "prompts": given.prompts,
        "held_out": len(prompts),
        "answer_tokens": data.manifest.totals.answer_tokens,
        "generation_seconds": round(generation_seconds(domain)),
        "rows": _compare(llm, prompts, tables, given.nodes),
        **provenance(SEED),
    }
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _data(given: argparse.Namespace) -> Path:
    """The target's answers, those of an earlier run included."""
    file, output = given.work / "questions.jsonl", given.work / "data"
    lines = (json.dumps({"prompt": question}) for question in questions(given.prompts))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    prompts = read_prompts(file, "prompt")
    loaded = load_model(given.model, weights=given.weights, threads=given.threads)
    settings = DataSettings(
        seed=SEED,
        prompts=prompts_checksum(prompts),
        passes=given.passes,
        invent=False,
        temperatures=((0.0, 0.4), (0.7, 0.3), (1.0, 0.3)),
        follow_ups=0.0,
        max_turns=1,
        batch=80,
        held_out_share=HELD_OUT,
        boundaries=(loaded.executor.config.num_layers,),
    )
    make_data(loaded, settings, output, ALL, weights=given.weights, prompts=prompts, origin=provenance(SEED))
    return output


def _table(given: argparse.Namespace, data: Path, name: str) -> str:
    path = given.work / name
    if not path.exists():
        started = time.monotonic()
        result = make_pool(
            given.model, data, path, orders=(1, 2, 3, 4), max_bytes=8_000_000, min_count=1, sizes=given.nodes,
            origin=provenance(SEED),
        )  # fmt: skip
        print(f"{name}: {result['file_bytes'] / 1e6:.1f} MB in {time.monotonic() - started:.0f} s", flush=True)
    return str(path)


def _compare(
    llm: LLM, prompts: Sequence[Sequence[int]], tables: Mapping[str, str | None], nodes: int
) -> list[dict[str, Any]]:
    rows = []
    for temperature in (0.0, 1.0):
        _, expected = decode_speed(llm, prompts, max_tokens=MAX_TOKENS, temperature=temperature)
        for name, table in tables.items():
            config = {"method": "lookup", "model": table, "num_speculative_tokens": nodes}
            speed, answers = decode_speed(
                llm.with_speculation(config), prompts, max_tokens=MAX_TOKENS, temperature=temperature
            )
            rows.append(
                {
                    "temperature": temperature,
                    "side": name,
                    "tokens_per_round": round(speed.tokens_per_round, 3),
                    "identical": answers == expected,
                }
            )
            print(f"| {temperature:g} | {name} | {speed.tokens_per_round:.3f} | {answers == expected} |", flush=True)
    return rows


if __name__ == "__main__":
    main()
