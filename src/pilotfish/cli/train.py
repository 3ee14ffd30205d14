"""`pilotfish train`: a drafter from nothing but the target. Here: the group, and `data`, the text to learn from."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import options
from pilotfish.errors import InvalidInputError

if TYPE_CHECKING:
    from pilotfish.models.loading import Model
    from pilotfish.train.data import DataProgress
    from pilotfish.train.manifest import Manifest

train = typer.Typer(help="Train a drafter for a target, from text that the target itself makes.", no_args_is_help=True)

DEFAULT_TEMPERATURES = "0:0.5,0.7:0.25,1:0.25"
SECONDS_BETWEEN_LINES = 30.0


@train.callback()
def _group() -> None:
    """Train a drafter for a target, from text that the target itself makes."""


@train.command()
def data(
    output: Annotated[Path, typer.Argument(help="Directory of the data set; one that was begun is gone on with.")],
    answer_tokens: Annotated[
        int,
        typer.Option("--answer-tokens", help="Tokens the target is to write; a finished set grows if it is raised."),
    ] = 3_000_000,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Your own: JSONL (.jsonl), or text with one per line.")
    ] = None,
    field: Annotated[
        str, typer.Option("--field", help="Of a JSONL object: the prompt, or the list of a conversation's user turns.")
    ] = "prompt",
    passes: Annotated[int, typer.Option("--passes", help="Times each of your prompts is answered.")] = 1,
    invent: Annotated[
        bool | None,
        typer.Option(
            "--invent/--no-invent", help="Let the target invent prompts, after yours; default: if none are given."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue your prompts as they are, without chat template.")
    ] = False,
    temperatures: Annotated[
        str,
        typer.Option(
            "--temperatures", help="Each with the share of conversations answered at it, such as 0:0.5,1:0.5."
        ),
    ] = DEFAULT_TEMPERATURES,
    follow_ups: Annotated[
        float | None,
        typer.Option("--follow-ups", help="How often an answer gets a further user turn; 0.2, with --raw never."),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option("--max-turns", help="Answers in a conversation at most; 3, with --raw 1.")
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option("--max-prompt-tokens", help="Of an invented user turn.")] = 160,
    max_answer_tokens: Annotated[int, typer.Option("--max-answer-tokens", help="Of an answer.")] = 256,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Of a conversation.")] = 1024,
    batch: Annotated[
        int, typer.Option("--batch", help="Conversations made together, and kept in one shard; more for a GPU.")
    ] = 64,
    hidden: Annotated[
        str,
        typer.Option(
            "--hidden", help="store: keep hidden states as they pass by; recompute: only token ids, less disk."
        ),
    ] = "store",
    boundaries: Annotated[
        str | None,
        typer.Option(
            "--boundaries", help="Layer boundaries to store, with commas; those of an EAGLE-3 head and the last."
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the prompts that no training sees, by their hash.")
    ] = 0.02,
    seed: Annotated[int, typer.Option("--seed", help="Makes the same data again.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    model: options.ModelName = options.DEMO_MODEL,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
    device: Annotated[str, typer.Option("--device", help="Of the PyTorch executor, such as cuda.")] = "cpu",
) -> None:
    """Make training text: the target answers your prompts, or prompts that it invents, at several temperatures.

    May be ended at any moment, by any means; the same command goes on, and the result is the same to the byte.
    """
    from pilotfish.models.loading import load_model
    from pilotfish.train.data import make_data
    from pilotfish.train.prompts import prompts_checksum, read_prompts
    from pilotfish.train.settings import DataSettings

    if hidden not in ("store", "recompute"):
        raise InvalidInputError(f"--hidden {hidden!r}: expected store or recompute")
    if hidden == "recompute" and boundaries is not None:
        raise InvalidInputError("--hidden recompute stores none: leave --boundaries out")
    given = [] if prompts is None else read_prompts(prompts, field)
    values: dict[str, Any] = {
        "seed": seed,
        "prompts": prompts_checksum(given),
        "passes": passes,
        "invent": not given if invent is None else invent,
        "raw": raw,
        "temperatures": _temperatures(temperatures),
        "follow_ups": (0.0 if raw else 0.2) if follow_ups is None else follow_ups,
        "max_turns": (1 if raw else 3) if max_turns is None else max_turns,
        "max_prompt_tokens": max_prompt_tokens,
        "max_answer_tokens": max_answer_tokens,
        "max_tokens": max_tokens,
        "batch": batch,
        "held_out_share": held_out,
    }
    DataSettings(**values)  # a mistake in them need not wait for the model
    loaded = load_model(model, executor=executor, weights=weights, threads=threads, device=device)  # type: ignore[arg-type]
    settings = DataSettings(**values, boundaries=() if hidden == "recompute" else _boundaries(boundaries, loaded))
    from pilotfish.bench.provenance import provenance

    origin = provenance(seed)
    with _progress() as show:
        manifest = make_data(
            loaded,
            settings,
            output,
            answer_tokens,
            weights=weights,
            prompts=given,
            origin=origin,
            on_progress=show,
        )
    _report(manifest, output, answer_tokens, as_json)


@train.command()
def join(
    output: Annotated[Path, typer.Argument(help="Directory to make.")],
    sources: Annotated[list[Path], typer.Argument(metavar="DATA...", help="Directories of data sets; they stay.")],
) -> None:
    """Make one data set of several of one target: of several machines, or your domain's beside general text."""
    from pilotfish.bench.provenance import provenance
    from pilotfish.train.join import join_data

    totals = join_data(output, sources, provenance(0)).totals
    print(
        f"{output}: {totals.answer_tokens:,} answer tokens in {totals.conversations:,} conversations with "
        f"{totals.new_prompts:,} distinct prompts"
    )


def _temperatures(text: str) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return tuple((float(temperature), float(share)) for temperature, share in pairs)
    except ValueError:
        raise InvalidInputError(
            f"--temperatures {text!r}: expected temperature:share with commas between, such as {DEFAULT_TEMPERATURES}"
        ) from None


def _boundaries(text: str | None, model: "Model") -> tuple[int, ...]:
    layers = len(model.executor.config.layers)
    if text is None:
        return tuple(sorted({boundary for boundary in (2, layers // 2, layers - 3, layers) if boundary > 0}))
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise InvalidInputError(f"--boundaries {text!r}: expected whole numbers with commas between") from None


@contextmanager
def _progress() -> Iterator[Callable[["DataProgress"], None]]:
    """A bar on a terminal; elsewhere, a line on standard error now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), console=console) as bar:
        task = bar.add_task("answer tokens", total=None)

        def show(progress: "DataProgress") -> None:
            bar.update(task, description=_state(progress), completed=progress.answer_tokens, total=progress.goal)

        yield show


class _Lines:
    """Prints how far it is, not more often than somebody would read it in a log."""

    def __init__(self) -> None:
        self._last = -SECONDS_BETWEEN_LINES

    def __call__(self, progress: "DataProgress") -> None:
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            sys.stderr.write(_state(progress) + "\n")
            sys.stderr.flush()


def _state(progress: "DataProgress") -> str:
    left = progress.seconds_left
    minutes = None if left is None else round(left / 60)
    time_left = "" if minutes is None else f", {minutes // 60} h {minutes % 60:02d} min left"
    return (
        f"{progress.answer_tokens:,} of {progress.goal:,} tokens, {progress.shards} shards, "
        f"{progress.tokens_per_second:.0f} tokens/s{time_left}"
    )


def _report(manifest: "Manifest", output: Path, goal: int, as_json: bool) -> None:
    from pilotfish.train.data import generation_seconds

    totals = manifest.totals
    seconds = generation_seconds(output)
    figures = {
        "output": str(output),
        "shards": len(manifest.shards),
        "conversations": totals.conversations,
        "dropped": totals.dropped,
        "distinct_prompts": totals.new_prompts,
        "answers": totals.answers,
        "answer_tokens": totals.answer_tokens,
        "ended_share": round(totals.ended_share, 4),
        "seconds": round(seconds, 1),
        "tokens_per_second": round(totals.answer_tokens / seconds, 1) if seconds else None,
        "reached": totals.answer_tokens >= goal,
    }
    if as_json:
        print(json.dumps(figures))
        return
    print(
        f"{output}: {totals.answer_tokens:,} answer tokens in {totals.conversations:,} conversations with "
        f"{totals.new_prompts:,} distinct prompts; {100 * totals.ended_share:.1f}% of the answers ended by themselves; "
        f"{figures['tokens_per_second']} tokens/s"
    )
    if not figures["reached"]:
        print(f"All prompts are used up before {goal:,} tokens: give more --passes, or --invent")
