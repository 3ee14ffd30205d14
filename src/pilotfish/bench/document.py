"""How a report looks: tables in Markdown and HTML, and one page that loads nothing. Owns form; knows no figures."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
:root { --back: #fff; --ink: #1b1f24; --faint: #d6dbe1; --first: #8a94a0; --second: #0a6ebd; --third: #c2570c;
  --fourth: #2c8a4b; --fifth: #8a3ffc; --sixth: #b8860b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --ink: #e4e8ec; --faint: #363c44; --first: #7b8794;
  --second: #4aa8f0; --third: #f08a4b; --fourth: #55c07a; --fifth: #b48cff; --sixth: #e0b84c; } }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1100px;
  margin: 2rem auto; padding: 0 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); }
th { vertical-align: bottom; } td { white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
tr.strong td { font-weight: 600; } svg { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
svg text { fill: var(--ink); font-size: 12px; } svg text.title { font-size: 14px; font-weight: 600; }
svg .grid { stroke: var(--faint); } dt { font-weight: 600; } dd { margin: 0 0 .5rem 0; overflow-wrap: anywhere; }
"""

Rows = Sequence[Sequence[str]]


def page(title: str, parts: Sequence[str]) -> str:
    """One HTML page of ready-made parts."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def html_table(headings: Sequence[str], rows: Rows, *, strong: Collection[str] = ()) -> str:
    """A table; rows whose first cell is in `strong` stand out."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr{' class=strong' if row[0] in strong else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def markdown_table(headings: Sequence[str], rows: Rows) -> str:
    """A table whose first column stands to the left, the others to the right."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *escaped))


def facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a report's figures come from, by name: what `provenance` gave, and the settings."""
    for name in ("command", "commit", "date", "seed"):
        yield name, str(report[name])
    for group in ("settings", "versions", "hardware"):
        yield group, ", ".join(f"{name} {value}" for name, value in report[group].items())


def html_facts(report: Mapping[str, Any]) -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(report))
    return f"<h2>Where the figures come from</h2><dl>{pairs}</dl>"


def number(value: float | int | None, form: str, *, scale: float = 1.0) -> str:
    """A figure times `scale`, or a dash where there is none."""
    return "-" if value is None else format(value * scale, form)
