"""The figures of docs/choosing.md: drafters and lengths compared, expected against measured speed, and their plots.

    python benchmarks/choosing.py measure QUESTIONS.jsonl --directory DIR [--limit 2] [--weights bfloat16]
    python benchmarks/choosing.py render DIR/*.json [--docs docs/choosing.md] [--plots docs/images]

`measure` is `pilotfish bench speed` for each drafter and length in turn, with the best choice in hindsight beside
`auto`; it leaves a report of each in DIR, and goes on where it stopped when it is started again. `render` takes such
reports, prints the tables, puts them in the place marked for them in a page, and draws the plots, with their data
beside them. It takes what `pilotfish bench speed --json` printed too. Exit code 1 if an overall prediction is off by
more than a tenth.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import put_into

from pilotfish.bench.expected import TOLERANCE
from pilotfish.bench.plots import bars, lines, standalone
from pilotfish.bench.tune import Candidate

CONFIGS: dict[str, dict[str, Any]] = {
    **{
        f"{method}-{draft_len}": {"method": method, "num_speculative_tokens": draft_len}
        for method, lengths in (("ngram", (2, 4)), ("suffix", (2, 4)), ("recycle", (2,)), ("lookup", (2, 4, 8)))
        for draft_len in lengths
    },
    "auto": {"method": "auto"},
}
HEADINGS = ("drafter", "T", "category", "E", "k", "c k", "v k", "o", "expected", "measured", "off by")


class Line(NamedTuple):
    """One comparison of a drafter with plain decoding."""

    drafter: str
    temperature: float
    category: str
    expected: Mapping[str, float]
    measured: float
    oracle: float | None

    def cells(self) -> list[str]:
        terms = self.expected
        return [
            self.drafter,
            f"{self.temperature:g}",
            self.category,
            f"{terms['tokens_per_round']:.2f}",
            f"{terms['drafted_per_round']:.2f}",
            # Adding nought makes a rounded -0.000 a plain one.
            *(f"{round(terms[name], 3) + 0.0:.3f}" for name in ("draft_cost", "row_cost", "overhead")),
            f"{terms['speedup']:.2f}x",
            f"{self.measured:.2f}x",
            f"{terms['error']:+.1%}",
        ]


def measure(arguments: argparse.Namespace) -> None:
    """One report per configuration."""
    from pilotfish.bench.partial import PartialResults
    from pilotfish.bench.provenance import provenance
    from pilotfish.bench.questions import load_questions, select
    from pilotfish.bench.speed import header, measure_passes, measure_speed
    from pilotfish.bench.speed_result import SpeedSettings
    from pilotfish.engine.llm import LLM

    arguments.directory.mkdir(parents=True, exist_ok=True)
    questions = select(load_questions(arguments.questions), limit=arguments.limit, first_turn=True)
    machine = {"weights": arguments.weights, "threads": arguments.threads}
    llm = LLM(arguments.model, recalibrate=True, **machine)
    for name, config in CONFIGS.items():
        adaptive = name == "auto"
        temperatures = (0.0, 1.0) if adaptive else (0.0,)
        settings = SpeedSettings(temperatures, arguments.max_tokens, arguments.repeats)
        facts = header(arguments.model, config, questions, settings, **machine)
        with PartialResults(arguments.directory / f"{name}.jsonl", facts) as results:
            result = measure_speed(llm, config, questions, settings, results, oracle=adaptive)
        result.pass_costs = measure_passes(llm, result.contexts)
        report = {**result.as_dict(), "settings": facts, **provenance(settings.seed)}
        assert result.identical or not result.exact, f"{name}: ids differ"
        (arguments.directory / f"{name}.json").write_text(json.dumps(report) + "\n", encoding="utf-8")
        print(f"{name}: {report['overall']['speedup']:.2f}x", file=sys.stderr)


def lines_of(report: Mapping[str, Any]) -> Iterator[Line]:
    """The overall figures of each temperature, then those of its categories."""
    drafter = Candidate(report["settings"]["speculative_config"]).name
    for temperature in report["temperatures"]:
        for category, figures in (("overall", temperature["overall"]), *temperature["categories"].items()):
            if figures["expected"] is not None:
                oracle = figures["oracle"] and figures["oracle"]["speedup"]
                yield Line(
                    drafter, temperature["temperature"], category, figures["expected"], figures["speedup"], oracle
                )


def tables(reports: Sequence[Mapping[str, Any]], found: Sequence[Line]) -> str:
    """The generated part of the page, as Markdown."""
    parts = []
    for temperature in sorted({line.temperature for line in found}):
        own = [line for line in found if line.temperature == temperature]
        parts += [f"Speed over plain decoding at temperature {temperature:g}:", "", *_by_category(own), ""]
    parts += [
        "The formula against measurement, all questions together:",
        "",
        *_markdown(HEADINGS, [line.cells() for line in found if line.category == "overall"]),
        "",
    ]
    adaptive = [line for line in found if line.drafter == "auto" and line.category != "overall"]
    if adaptive:
        parts += ["and `auto` by category:", "", *_markdown(HEADINGS, [line.cells() for line in adaptive]), ""]
    costs = reports[-1]["pass_costs"]
    one = next(each["seconds"] for each in costs["passes"] if each["rows"] == 1)
    parts += [
        f"A pass after {costs['context']} tokens, weights in {costs['weights']}, {costs['threads']} threads:",
        "",
        *_markdown(
            ("rows", *(str(each["rows"]) for each in costs["passes"])),
            [
                ["ms", *(f"{each['seconds'] * 1e3:.1f}" for each in costs["passes"])],
                ["to one row", *(f"{each['seconds'] / one:.2f}" for each in costs["passes"])],
            ],
        ),
        "",
    ]
    report = reports[-1]
    settings = report["settings"]
    parts.append(
        f"{settings['questions']['count']} questions, {settings['max_tokens']} tokens each, {settings['model']}; "
        f"commit {report['commit']}, {report['hardware']['processor']}, {report['date']}."
    )
    return "\n".join(parts)


def _by_category(found: Sequence[Line]) -> list[str]:
    """Categories down, drafters across, the best choice in hindsight last."""
    drafters = list(dict.fromkeys(line.drafter for line in found))
    categories = [name for name in dict.fromkeys(line.category for line in found) if name != "overall"]
    cells = {(line.category, line.drafter): f"{line.measured:.2f}" for line in found}
    oracle = {line.category: f"{line.oracle:.2f}" for line in found if line.oracle is not None}
    rows = [
        [category, *(cells.get((category, drafter), "-") for drafter in drafters), oracle.get(category, "-")]
        for category in (*categories, "overall")
    ]
    return _markdown(("category", *drafters, "in hindsight"), rows)


def write_plots(directory: Path, reports: Sequence[Mapping[str, Any]], found: Sequence[Line]) -> list[Path]:
    """Speed by length, by category, expected and measured; the cost of a pass; and the data of all of them.

    Returns:
        the plots.
    """
    directory.mkdir(parents=True, exist_ok=True)
    overall = [line for line in found if line.category == "overall"]
    plots = {
        "expected_speed": bars(
            "Speed over plain decoding",
            "x",
            [f"{line.drafter}, T={line.temperature:g}" for line in overall],
            {
                "expected": [line.expected["speedup"] for line in overall],
                "measured": [line.measured for line in overall],
            },
        ),
        "pass_cost": _pass_costs(reports[-1]["pass_costs"]),
    }
    by_length: dict[str, list[tuple[float, float]]] = {}
    for report in reports:
        config, greedy = report["settings"]["speculative_config"], report["temperatures"][0]
        if isinstance(config.get("num_speculative_tokens"), int):
            points = by_length.setdefault(config["method"], [(0.0, 1.0)])
            points.append((float(config["num_speculative_tokens"]), greedy["overall"]["speedup"]))
    if by_length:
        series = {method: sorted(points) for method, points in by_length.items()}
        plots["speed_by_length"] = lines("Speed over plain decoding, T=0", "x", "tokens drafted per round", series)
    adaptive = {
        line.category: line for line in found if line.drafter == "auto" and line.temperature == found[0].temperature
    }
    if adaptive and all(line.oracle is not None for line in adaptive.values()):
        plots["speed_by_category"] = _categories(found, adaptive)
    for name, plot in plots.items():
        (directory / f"{name}.svg").write_text(standalone(plot) + "\n", encoding="utf-8")
    data = {"lines": [line._asdict() for line in found], "pass_costs": reports[-1]["pass_costs"]}
    (directory / "choosing.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return [directory / f"{name}.svg" for name in plots]


def _categories(found: Sequence[Line], adaptive: Mapping[str, Line]) -> str:
    """The fixed drafter that is best overall, `auto`, and the best choice in hindsight."""
    fixed = [line for line in found if line.drafter != "auto" and line.temperature == found[0].temperature]
    best = max((line for line in fixed if line.category == "overall"), key=lambda line: line.measured).drafter
    speeds = {line.category: line.measured for line in fixed if line.drafter == best}
    names = [name for name in adaptive if name != "overall"] + ["overall"]
    series = {
        best: [speeds.get(name, 0.0) for name in names],
        "auto": [adaptive[name].measured for name in names],
        "in hindsight": [adaptive[name].oracle or 0.0 for name in names],
    }
    return bars("Speed over plain decoding, T=0", "x", names, series)


def _pass_costs(costs: Mapping[str, Any]) -> str:
    series = {"measured": [(each["rows"] - 1.0, each["seconds"] * 1e3) for each in costs["passes"]]}
    if all(each["roofline_seconds"] is not None for each in costs["passes"]):
        series["roofline"] = [(each["rows"] - 1.0, each["roofline_seconds"] * 1e3) for each in costs["passes"]]
    return lines(f"Cost of a pass after {costs['context']} tokens", "ms", "drafted tokens verified", series)


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(row)} |" for row in (headings, rule, *rows)]


def render(arguments: argparse.Namespace) -> int:
    by_name = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in arguments.reports}
    order = [name for name in CONFIGS if name in by_name]
    reports = [by_name[name] for name in (*order, *(name for name in by_name if name not in CONFIGS))]
    found = [line for report in reports for line in lines_of(report)]
    text = tables(reports, found)
    print(text)
    plots = write_plots(arguments.plots, reports, found) if arguments.plots is not None else []
    if arguments.docs is not None:
        links = [f"![{plot.stem.replace('_', ' ')}]({os.path.relpath(plot, arguments.docs.parent)})" for plot in plots]
        put_into(arguments.docs, "figures", "\n\n".join([text, *links]))
    off = [line for line in found if line.category == "overall" and abs(line.expected["error"]) > TOLERANCE]
    for line in off:
        error = line.expected["error"]
        print(f"off by more than {TOLERANCE:.0%}: {line.drafter}, T={line.temperature:g}: {error:+.1%}")
    return 1 if off else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="make the reports")
    measuring.add_argument("questions", type=Path)
    measuring.add_argument("--directory", type=Path, required=True)
    measuring.add_argument("--limit", type=int, default=2, help="questions per category")
    measuring.add_argument("--max-tokens", type=int, default=128)
    measuring.add_argument("--repeats", type=int, default=1)
    measuring.add_argument("--model", default="smollm2-135m-instruct")
    measuring.add_argument("--weights", default="bfloat16")
    measuring.add_argument("--threads", type=int)
    rendering = commands.add_parser("render", help="make the tables and plots")
    rendering.add_argument("reports", nargs="+", type=Path)
    rendering.add_argument("--docs", type=Path, help="page to put the tables into")
    rendering.add_argument("--plots", type=Path, help="directory to write the plots to")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments)
        return 0
    return render(arguments)


if __name__ == "__main__":
    sys.exit(main())
