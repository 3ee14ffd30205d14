"""How a training looks on a terminal, and its plot at the end.

Owns the view: on a terminal a table that is drawn anew with every step, elsewhere a line per measurement.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from pilotfish.train.finish import Outcome
    from pilotfish.train.trainer import Listener

SMOOTHING = 0.9


@contextmanager
def training_view(steps: int | None) -> Iterator["Listener"]:
    """Shows the records of a run's log as they come.

    Args:
        steps: of the run, where known.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    state = _State(steps)
    if not console.is_terminal:

        def tell(record: Mapping[str, Any]) -> None:
            state.take(record)
            if "held_out" in record:
                console.print(state.line(), soft_wrap=True, highlight=False)

        yield tell
        return
    with Live(console=console, refresh_per_second=4) as live:

        def draw(record: Mapping[str, Any]) -> None:
            state.take(record)
            live.update(state.table())

        yield draw


class _State:
    """What the records said so far."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._latest: Mapping[str, Any] = {}
        self._loss: float | None = None
        self._rate: float | None = None
        self._held_out: list[Mapping[str, Any]] = []

    def take(self, record: Mapping[str, Any]) -> None:
        if "held_out" in record:
            self._held_out.append(record)
            return
        self._latest = record
        self._loss = _smoothed(self._loss, record["loss"])
        self._rate = _smoothed(self._rate, record["tokens_per_second"])

    def line(self) -> str:
        record = self._held_out[-1]
        found = record["held_out"]
        agreement = " ".join(f"{share:.3f}" for share in found["greedy"][:4])
        loss = "" if self._loss is None else f", loss {self._loss:.4f}, {self._rate:.0f} tokens/s"
        return (
            f"step {record['step']}{loss}: accepted at temperature 0 by depth {agreement}; projected speedup "
            f"{found['projected_speedup']:.3f}x with {found['draft_len']} drafted"
        )

    def table(self) -> "Table":
        from rich.table import Table

        title = f"step {self._latest.get('step', 0)}" + (f" of {self._steps}" if self._steps else "")
        if self._loss is not None and self._rate is not None:
            title += f"   loss {self._loss:.4f} ({self._latest['loss_kind']})   {self._rate:.0f} tokens/s"
        table = Table("step", "accepted at T=0 by depth", "at T=1", "tokens per round", "projected", title=title)
        for record in self._held_out[-12:]:
            found = record["held_out"]
            table.add_row(
                str(record["step"]),
                *(
                    " ".join(f"{value:.2f}" for value in found[name])
                    for name in ("greedy", "sampled", "tokens_per_round")
                ),
                f"{found['projected_speedup']:.3f}x (k={found['draft_len']})",
            )
        return table


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else SMOOTHING * before + (1 - SMOOTHING) * now


def plot(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws a run's held-out measurements against its steps, as an SVG file."""
    from pilotfish.bench.plots import lines, standalone

    measured = [record for record in records if "held_out" in record]
    depths = range(min(3, len(measured[0]["held_out"]["greedy"])))
    series = {
        f"depth {depth + 1}": [(float(record["step"]), record["held_out"]["greedy"][depth]) for record in measured]
        for depth in depths
    }
    series["projected speedup"] = [
        (float(record["step"]), record["held_out"]["projected_speedup"]) for record in measured
    ]
    svg = standalone(lines("Held-out text: acceptance at temperature 0, and projected speedup", "", "step", series))
    path.write_text(svg, encoding="utf-8")


def print_outcome(outcome: "Outcome", path: Path) -> None:
    """A few lines on what came of a training."""
    held_out, check = outcome.measurement, outcome.check
    print(
        f"{path}: {outcome.tokens:,} tokens in {outcome.seconds / 60:.1f} minutes, ended by {outcome.ended}, weights "
        f"of step {outcome.best_step}; {outcome.file_bytes / 1e6:.1f} MB"
    )
    depths = " ".join(f"{share:.3f}" for share in held_out.acceptance.greedy)
    print(f"Held out, temperature 0: accepted by depth {depths}; projected {held_out.greedy.speedup:.2f}x")
    if check is not None:
        print(
            f"Measured: {check.speedup:.2f}x with {check.draft_len} drafted per round "
            f"({check.plain_tokens_per_second:.1f} to {check.tokens_per_second:.1f} tokens/s), "
            f"{check.tokens_per_round:.3f} tokens per round; projected {check.projected_tokens_per_round:.3f}"
        )
