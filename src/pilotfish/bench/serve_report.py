"""Reports of `pilotfish bench serve`: rows for a terminal, Markdown, and one HTML page that needs nothing else.

Owns how figures look. Reads the object that `--json` prints, so that a report can be made again from it, and computes
nothing that is not in there.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from pilotfish.bench.document import facts, html_facts, html_table, markdown_table, number, page
from pilotfish.bench.plots import lines

TITLE = "A server under load"

HEADINGS = (
    "load",
    "side",
    "requests",
    "tokens/s",
    "requests/s",
    "times the first side",
    "repeats",
    "first token p50 / p95 / p99, ms",
    "inter-token p50 / p95 / p99, ms",
    "longest gaps p99, ms",
    "request p50 / p95, s",
    "mean acceptance length",
)

NOTE = (
    "Tokens/s are all tokens of whole answers over the time from the first request to the last one's end, reading of "
    "prompts and waiting included. A request's times count from when it was due. Inter-token latency shares the gap "
    "between two deliveries evenly among the tokens of the later one; the longest gaps are those between deliveries. "
    "The sides got the same requests, one side right after the other and by turns first. Mean acceptance length is "
    "tokens over rounds, as the server counts them."
)


def summary_line(report: Mapping[str, Any]) -> str:
    """One sentence: whether answers were the same wherever a question was asked."""
    if report["settings"].get("fresh_prompts"):
        return "Every request began differently, so no prefix cache could help and texts are not compared"
    if report["identical"]:
        return "The same question got the same text on all sides of an engine, at every load and in every repetition"
    named = [f"{engine}: {', '.join(keys)}" for engine, keys in report["different"].items() if keys]
    return f"Texts differ for questions of {'; '.join(named)}"


def failures(report: Mapping[str, Any]) -> Iterator[str]:
    """What went wrong, by load and side."""
    for level in report["levels"]:
        for name, figures in level["sides"].items():
            for message, count in figures["errors"].items():
                yield f"{level['name']}, {name}: {count} of {count + figures['requests']} requests failed: {message}"


def table_rows(report: Mapping[str, Any]) -> Iterator[list[str]]:
    """The table, `HEADINGS` left out."""
    for level in report["levels"]:
        for name, figures in level["sides"].items():
            repeats = [value for value in figures["speedup_by_repeat"] if value is not None]
            yield [
                level["name"],
                name,
                f"{figures['requests']}" + (f" + {figures['failed']} failed" if figures["failed"] else ""),
                number(figures["tokens_per_second"], ".1f"),
                number(figures["requests_per_second"], ".2f"),
                number(figures["speedup"], ".2f") + "x",
                f"{min(repeats):.2f} to {max(repeats):.2f}" if len(repeats) > 1 else "one",
                _milliseconds(figures["time_to_first_token"], "p50", "p95", "p99"),
                _milliseconds(figures["inter_token_latency"], "p50", "p95", "p99"),
                _milliseconds(figures["delivery_gap"], "p99"),
                " / ".join(number(figures["request_latency"][name], ".2f") for name in ("p50", "p95")),
                number(figures["mean_acceptance_length"], ".2f"),
            ]


def markdown(report: Mapping[str, Any]) -> str:
    """The whole report as Markdown."""
    parts = [f"# {TITLE}", f"{summary_line(report)}.", markdown_table(HEADINGS, list(table_rows(report)))]
    parts += [f"- {line}" for line in failures(report)]
    parts += [NOTE, "\n".join(f"- {name}: {value}" for name, value in facts(report))]
    return "\n\n".join(parts) + "\n"


def html(report: Mapping[str, Any]) -> str:
    """The whole report as one page with plots; it loads nothing."""
    parts = [f"<p>{escape(summary_line(report))}.</p>", html_table(HEADINGS, list(table_rows(report)))]
    parts += [f"<p>{escape(line)}.</p>" for line in failures(report)]
    for kind, across in (("closed", "requests at a time"), ("open", "requests a second")):
        levels = sorted((level for level in report["levels"] if level["kind"] == kind), key=lambda level: level["load"])
        if levels:
            parts += [
                _plot("Throughput", "tokens/s", across, levels, "tokens_per_second", None, 1.0),
                _plot("Time to first token, p95", "ms", across, levels, "time_to_first_token", "p95", 1e3),
                _plot("Inter-token latency, p95", "ms", across, levels, "inter_token_latency", "p95", 1e3),
            ]
    return page(TITLE, [*parts, f"<p>{escape(NOTE)}</p>", html_facts(report)])


def _plot(
    title: str, unit: str, across: str, levels: list[Mapping[str, Any]], key: str, part: str | None, scale: float
) -> str:
    """One figure over the load, a line per side."""
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in levels[0]["sides"]}
    for level in levels:
        for name, figures in level["sides"].items():
            value = figures[key] if part is None else figures[key][part]
            if value is not None:
                series[name].append((level["load"], value * scale))
    return lines(title, unit, across, series)


def _milliseconds(figures: Mapping[str, float | None], *names: str) -> str:
    return " / ".join(number(figures[name], ".1f", scale=1e3) for name in names)
