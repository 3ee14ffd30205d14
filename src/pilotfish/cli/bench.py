"""`pilotfish bench`: how fast it is here."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli import options
from pilotfish.errors import InvalidInputError, SpeculativeConfigError

if TYPE_CHECKING:
    from pilotfish.bench.step import StepReport

bench = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)

DEFAULT_ROWS = "1,2,3,4,5,6,8,12,16,24,32,64,256"


@bench.callback()
def _group() -> None:
    """Measure speed on this machine."""


@bench.command()
def step(
    context: Annotated[int, typer.Option("--context", help="Committed tokens before the rows.")] = 256,
    rows: Annotated[str, typer.Option("--rows", help="Rows per pass, with commas; 1 among them.")] = DEFAULT_ROWS,
    repeats: Annotated[int, typer.Option("--repeats", help="Times each pass is timed.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    model: options.ModelName = options.DEMO_MODEL,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
) -> None:
    """Time one forward pass by number of rows, beside what memory bandwidth and multiply-add peak allow."""
    counts = _counts(rows)
    from pilotfish.bench.step import measure_step
    from pilotfish.models.loading import load_model

    loaded = load_model(model, executor=executor, weights=weights, threads=threads)  # type: ignore[arg-type]
    report = measure_step(loaded.executor, context=context, rows=counts, repeats=repeats)
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        _print(report)


@bench.command()
def speed(
    questions: Annotated[
        Path | None, typer.Option("--questions", help="JSONL in Spec-Bench's form; a set of our own by default.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Questions per category at most.")] = None,
    first_turn: Annotated[bool, typer.Option("--first-turn", help="Ask only the first turn of each.")] = False,
    temperature: Annotated[
        list[float] | None, typer.Option("--temperature", help="Repeatable; 0 and 1 by default.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens per answer at most.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", help="Times everything is measured, for the spread.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Replays the answers.")] = 0,
    cold: Annotated[
        bool, typer.Option("--cold", help="A fresh engine for every request, instead of one for each pass.")
    ] = False,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Report the best choice in hindsight too; half as long again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the tables to this file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Keep results in this file, and go on from those in it.")
    ] = None,
    model: options.ModelName = options.DEMO_MODEL,
    speculative_config: options.SpeculativeConfigText = None,
    method: options.Method = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    verification: options.Verification = None,
    recalibrate: options.Recalibrate = False,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
) -> None:
    """Compare plain and speculative decoding, question by question, in speed and in token ids.

    One engine per side lives through all questions and is asked each once, so that drafters learn as they do in use.
    Exit code 1 if ids differ on an executor that promises they do not.
    """
    config = options.speculative_config(
        speculative_config,
        method=method,
        model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
    )
    if config is None:
        raise SpeculativeConfigError("nothing to compare plain decoding with: expected a drafter, got --method off")
    for file in (markdown, html):
        require_writable(file)
    from pilotfish.bench import report as reports
    from pilotfish.bench.partial import PartialResults
    from pilotfish.bench.provenance import provenance
    from pilotfish.bench.questions import built_in, load_questions, select
    from pilotfish.bench.speed import header, measure_passes, measure_speed
    from pilotfish.bench.speed_result import SpeedSettings

    settings = SpeedSettings(tuple(temperature or (0.0, 1.0)), max_tokens, repeats, seed, cold)
    asked = select(built_in() if questions is None else load_questions(questions), limit=limit, first_turn=first_turn)
    facts = header(model, config, asked, settings, executor=executor, weights=weights, threads=threads)
    with PartialResults(resume, facts) as results:
        llm = options.load_llm(
            model, config, executor=executor, weights=weights, threads=threads, recalibrate=recalibrate
        )
        with progress_bar("requests") as progress:
            result = measure_speed(llm, config, asked, settings, results, oracle=oracle, progress=progress)
    result.pass_costs = measure_passes(llm, result.contexts)
    report = {**result.as_dict(), "settings": facts, **provenance(seed)}
    for file, render in ((markdown, reports.markdown), (html, reports.html)):
        if file is not None:
            file.write_text(render(report), encoding="utf-8")
    if as_json:
        print(json.dumps(report))
    else:
        for each in report["temperatures"]:
            title = f"temperature {each['temperature']:g}: {reports.summary_line(each['overall'])}"
            print_table(title, reports.HEADINGS, list(reports.table_rows(each)))
            for sentence in (reports.expected_line(each["overall"]), reports.policy_line(each["overall"])):
                if sentence:
                    print(f"{sentence}.")
        print(reports.engines_line(report))
    sys.exit(1 if result.exact and not result.identical else 0)


def require_writable(file: Path | None) -> None:
    """Refuses a file that could not be written in the end, before a long measurement.

    Raises:
        InvalidInputError: its directory is missing, it is a directory, or writing is not allowed.
    """
    if file is None:
        return
    directory = file.absolute().parent
    if file.is_dir() or not directory.is_dir() or not os.access(file if file.exists() else directory, os.W_OK):
        raise InvalidInputError(
            f"cannot write {file}: expected a file in a directory that exists, and leave to write it"
        )


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[float, float], None]]:
    """A bar on standard error, which goes away in the end; gives a function of how much of how much is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(unit, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on standard output, first column to the left, the others to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    # Where nobody looks at a screen, lines are not folded to the width of one.
    Console(highlight=False, width=None if sys.stdout.isatty() else 250).print(table)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError(f"--rows {text!r}: expected whole numbers with commas between, such as 1,4,8") from None


def _print(report: "StepReport") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"weights {report.weights}, context {report.context}, threads {report.threads}")
    if report.bandwidth_bytes_per_second is not None and report.peak_flops is not None:
        console.print(
            f"memory bandwidth {report.bandwidth_bytes_per_second / 1e9:.1f} GB/s, "
            f"multiply-add peak {report.peak_flops / 1e9:.0f} GFLOP/s"
        )
    else:
        console.print("no roofline: it is measured by the native extension and holds for the CPU")
    table = Table()
    for heading in ("rows", "ms", "row cost", "t / t(1)", "roofline ms", "t / roofline"):
        table.add_column(heading, justify="right")
    one_row = next(each.seconds for each in report.passes if each.rows == 1)
    for each in report.passes:
        table.add_row(
            str(each.rows),
            f"{each.seconds * 1e3:.2f}",
            "" if each.row_cost is None else f"{each.row_cost:.3f}",
            f"{each.seconds / one_row:.2f}",
            "" if each.roofline_seconds is None else f"{each.roofline_seconds * 1e3:.2f}",
            "" if each.roofline_seconds is None else f"{each.seconds / each.roofline_seconds:.2f}",
        )
    console.print(table)
    if report.outside_native_share is not None:
        console.print(f"outside native code: {report.outside_native_share:.1%} of a one-row pass")
