"""`pilotfish bench`: how fast it is here."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pilotfish.cli import options
from pilotfish.errors import InvalidInputError

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
    import torch

    from pilotfish.bench.step import measure_step
    from pilotfish.models.loading import load_model

    if threads is not None and threads > 0:
        torch.set_num_threads(threads)  # the PyTorch executor has no threads of its own
    loaded = load_model(model, executor=executor, weights=weights, threads=threads)  # type: ignore[arg-type]
    report = measure_step(loaded.executor, context=context, rows=counts, repeats=repeats)
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        _print(report)


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
