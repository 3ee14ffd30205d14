"""Reports of `pilotfish bench speed`: a Markdown table, and one HTML page that needs nothing else.

Owns how figures look. Reads the object that `--json` prints, so that a report can be made again from it, and computes
nothing that is not in there.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from pilotfish.bench.document import facts, html_facts, html_table, markdown_table, number, page
from pilotfish.bench.expected import TOLERANCE
from pilotfish.bench.plots import bars, lines

TITLE = "Plain and speculative decoding"

HEADINGS = (
    "category",
    "requests",
    "plain tokens/s",
    "speculative tokens/s",
    "speedup",
    "repeats",
    "expected",
    "in hindsight",
    "end to end",
    "mean acceptance length",
    "acceptance by position",
    "draft / verify / rest",
    "first token, plain / speculative",
    "ids",
)
POSITIONS = 6
"""Acceptance is shown for this many positions at most; all of them are in the JSON."""


def summary_line(figures: Mapping[str, Any]) -> str:
    """One sentence: both speeds, their ratio, and whether the ids agree."""
    same = "all token ids identical" if figures["identical"] else f"ids differ in {len(figures['different'])} answers"
    return (
        f"{number(figures['plain_tokens_per_second'], '.1f')} tokens/s plain, "
        f"{number(figures['speculative_tokens_per_second'], '.1f')} tokens/s speculative: "
        f"{number(figures['speedup'], '.2f')}x, {same}"
    )


def expected_line(figures: Mapping[str, Any]) -> str:
    """One sentence: what the formula expects of the overall speed, and whether that holds; empty without figures."""
    expected = figures.get("expected")
    if not expected:
        return ""
    holds = "within" if abs(expected["error"]) <= TOLERANCE else "not within"
    return (
        f"The formula of expected speed gives {expected['speedup']:.2f}x, {expected['error']:+.1%} off: "
        f"{holds} {TOLERANCE:.0%}"
    )


def policy_line(figures: Mapping[str, Any]) -> str:
    """One sentence: what the length policy itself costs; empty where there is none."""
    totals = figures["speculative"]
    if not totals["policy_seconds"] or not totals["decode_rounds"]:
        return ""
    return (
        f"The length policy itself takes {totals['policy_seconds'] / totals['decode_seconds']:.2%} of the decoding "
        f"time, {totals['policy_seconds'] / totals['decode_rounds'] * 1e6:.0f} microseconds a round"
    )


def table_rows(temperature: Mapping[str, Any]) -> Iterator[list[str]]:
    """The table of one temperature, `HEADINGS` left out: the categories, then all of them together."""
    for category, figures in temperature["categories"].items():
        yield _row(category, figures)
    yield _row("overall", temperature["overall"])


def markdown(report: Mapping[str, Any]) -> str:
    """The whole report as Markdown: a table per temperature, then where the figures come from."""
    parts = [f"# {TITLE}", "", engines_line(report), ""]
    for temperature in report["temperatures"]:
        parts += [f"## Temperature {temperature['temperature']:g}", "", _summary(temperature["overall"]), ""]
        parts.append(markdown_table(HEADINGS, list(table_rows(temperature))))
        if temperature["skipped"]:
            parts += ["", f"Left out, as they do not fit the context: {_skipped(temperature)}."]
        parts.append("")
    parts += [NOTE, ""]
    parts += [f"- {name}: {value}" for name, value in facts(report)]
    return "\n".join(parts) + "\n"


def html(report: Mapping[str, Any]) -> str:
    """The whole report as one page with plots; it loads nothing."""
    parts = [f"<p>{escape(engines_line(report))}</p>"]
    for temperature in report["temperatures"]:
        parts.append(f"<h2>Temperature {temperature['temperature']:g}</h2>")
        parts.append(f"<p>{escape(_summary(temperature['overall']))}</p>")
        parts.append(html_table(HEADINGS, list(table_rows(temperature)), strong=("overall",)))
        if temperature["skipped"]:
            parts.append(f"<p>Left out, as they do not fit the context: {escape(_skipped(temperature))}.</p>")
        parts.append(_speed_plot(temperature))
        parts.append(_acceptance_plot(temperature))
    if report["pass_costs"]:
        parts.append("<h2>What a pass costs</h2>")
        parts.append(_cost_plot(report["pass_costs"]))
    return page(TITLE, [*parts, f"<p>{escape(NOTE)}</p>", html_facts(report)])


NOTE = (
    "Speeds are all tokens over all seconds after the first delivery; end to end counts the reading of the prompt too. "
    "Both sides count delivered token ids with one clock. Acceptance by position is the share of drafts of at least "
    "that length whose token there was delivered. Each request ran on both sides, one right after the other and by "
    "turns first. Expected is what the formula of docs/choosing.md gives, and how far it is off the measured speedup. "
    "In hindsight is the speedup of whoever knows, in every round, which drafter and length are best for this answer, "
    "at the measured times of passes and drafts: a bound, which no policy reaches."
)


def engines_line(report: Mapping[str, Any]) -> str:
    """One sentence: what the drafters could have learned before a request."""
    if report["settings"].get("cold"):
        return "A fresh engine and drafter for every request, which knows nothing of the others."
    starts = sum(each["engines"] for each in report["temperatures"])
    return (
        "One engine per side lives through all questions of a pass and is asked each of them once: what its drafters "
        "learn they keep from request to request, as in use, and no answer can be remembered. Engines of the "
        f"speculative side that were started: {starts}."
    )


def _summary(figures: Mapping[str, Any]) -> str:
    sentences = (summary_line(figures), expected_line(figures), policy_line(figures))
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    plain, speculative = figures["plain"], figures["speculative"]
    expected, oracle = figures.get("expected"), figures.get("oracle")
    acceptance = figures["acceptance_by_position"]
    shown = " ".join(f"{share:.2f}" for share in acceptance[:POSITIONS]) + (" …" if acceptance[POSITIONS:] else "")
    repeats = [value for value in figures["speedup_by_repeat"] if value is not None]
    return [
        name,
        str(plain["requests"]),
        number(plain["tokens_per_second"], ".1f"),
        number(speculative["tokens_per_second"], ".1f"),
        number(figures["speedup"], ".2f") + "x",
        f"{min(repeats):.2f} to {max(repeats):.2f}" if len(repeats) > 1 else "one",
        f"{expected['speedup']:.2f}x ({expected['error']:+.0%})" if expected else "-",
        f"{oracle['speedup']:.2f}x" if oracle else "-",
        number(figures["end_to_end_speedup"], ".2f") + "x",
        number(figures["tokens_per_round"], ".2f"),
        shown or "nothing drafted",
        time_split(speculative),
        f"{number(plain['time_to_first_token'], '.3f')} / {number(speculative['time_to_first_token'], '.3f')} s",
        "identical" if figures["identical"] else f"{len(figures['different'])} differ",
    ]


def time_split(totals: Mapping[str, Any]) -> str:
    """Shares of the decoding time: drafter, target's passes, everything else."""
    whole = totals["draft_seconds"] + totals["verify_seconds"] + totals["rest_seconds"]
    if not whole:
        return "nothing decoded"
    return " / ".join(f"{totals[f'{part}_seconds'] / whole:.1%}" for part in ("draft", "verify", "rest"))


def _speed_plot(temperature: Mapping[str, Any]) -> str:
    rows = {**temperature["categories"], "overall": temperature["overall"]}
    series = {
        side: [figures[side]["tokens_per_second"] or 0.0 for figures in rows.values()]
        for side in ("plain", "speculative")
    }
    if all(figures.get("oracle") for figures in rows.values()):
        series["in hindsight"] = [figures["oracle"]["tokens_per_second"] for figures in rows.values()]
    return bars("Speed by category", "tokens/s", list(rows), series)


def _acceptance_plot(temperature: Mapping[str, Any]) -> str:
    """Overall and the categories at both ends; a line for each of a dozen categories would not be read."""
    overall = temperature["overall"]["acceptance_by_position"]
    if not overall:
        return ""
    by_rate = sorted(
        (name for name, figures in temperature["categories"].items() if figures["acceptance_by_position"]),
        key=lambda name: temperature["categories"][name]["tokens_per_round"],
    )
    shown = {"overall": overall}
    for name in dict.fromkeys((by_rate[-1], by_rate[0])):
        shown[name] = temperature["categories"][name]["acceptance_by_position"]
    series = {name: [(1.0 + place, share) for place, share in enumerate(shares)] for name, shares in shown.items()}
    return lines("Acceptance by position", "share", "position in the draft", series)


def _cost_plot(costs: Mapping[str, Any]) -> str:
    passes = sorted(costs["passes"], key=lambda each: each["rows"])
    series = {"measured": [(each["rows"] - 1.0, each["seconds"] * 1e3) for each in passes]}
    if all(each["roofline_seconds"] is not None for each in passes):
        series["roofline"] = [(each["rows"] - 1.0, each["roofline_seconds"] * 1e3) for each in passes]
    title = f"Cost of a pass against draft length, after {costs['context']} tokens"
    return lines(title, "ms", "drafted tokens verified in the pass", series)


def _skipped(temperature: Mapping[str, Any]) -> str:
    return ", ".join(
        f"question {each['question_id']} from turn {each['turn'] + 1} ({each['prompt_tokens']} tokens)"
        for each in temperature["skipped"]
    )
