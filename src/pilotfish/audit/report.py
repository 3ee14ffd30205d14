"""The audit's report as one HTML page that needs nothing else: words, tables and pictures of each level."""

from html import escape

from pilotfish.audit import plots
from pilotfish.audit.results import Level, Report

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b2a33}"
    "table{border-collapse:collapse}td,th{border:1px solid #d5dde1;padding:.25rem .6rem;text-align:left}"
    ".pass{color:#22764a}.fail{color:#b3261e}li.finding{color:#b3261e}svg{margin:.6rem 0;display:block}"
)


def as_html(report: Report) -> str:
    """The whole page."""
    verdict = _verdict(report.passed)
    rows = "".join(
        f"<tr><td>{level.name}</td><td>{_verdict(level.passed)}</td><td>{level.tests}</td><td>{level.samples}</td>"
        f"<td>{level.false_alarm_rate:g}</td><td>{level.seconds:.1f}</td></tr>"
        for level in report.levels
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pilotfish audit</title>'
        f"<style>{_STYLE}</style></head><body><h1>Pilotfish audit: {verdict}</h1>"
        f"<p>Size {escape(report.size)}, seed {report.seed}.</p>"
        "<table><tr><th>level</th><th>verdict</th><th>tests</th><th>samples</th><th>false-alarm rate</th>"
        f"<th>seconds</th></tr>{rows}</table>{''.join(map(_section, report.levels))}</body></html>\n"
    )


def _verdict(passed: bool) -> str:
    return '<span class="pass">passed</span>' if passed else '<span class="fail">failed</span>'


def _section(level: Level) -> str:
    parts = [f"<h2>{level.name}: {_verdict(level.passed)}</h2>"]
    if level.findings:
        items = "".join(f'<li class="finding">{escape(finding)}</li>' for finding in level.findings)
        parts.append(f"<ul>{items}</ul>")
    effects = "".join(
        f"<tr><td>{escape(what)}</td><td>{size:.3g}</td></tr>" for what, size in level.smallest_effect.items()
    )
    parts.append(f"<table><tr><th>smallest effect it would have seen</th><th></th></tr>{effects}</table>")
    parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in level.notes)}</ul>")
    if level.p_values:
        parts.append(plots.histogram(f"{len(level.p_values)} p-values", level.p_values))
    parts += [plots.bars(plot.title, plot.observed, plot.expected) for plot in level.laws]
    parts += [
        plots.columns(f"drafted tokens delivered per round, by position: {plot.title}", plot.shares)
        for plot in level.acceptance
    ]
    return "".join(parts)
