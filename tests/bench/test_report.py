import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pilotfish.bench.oracle import Hindsight
from pilotfish.bench.plots import bars, lines, standalone
from pilotfish.bench.provenance import provenance
from pilotfish.bench.report import html, markdown
from pilotfish.bench.speed_result import Skipped, SpeedResult
from pilotfish.bench.step import StepPass, StepReport
from tests.bench.runs import fast_run, made_pair

VOID = {"meta", "rect", "line", "circle", "polyline"}


@pytest.fixture
def report():
    pairs = [
        made_pair(category="chat"),
        made_pair(category="a|b<c>", question_id=2, speculative=fast_run((9,) * 5, seconds=1.8)),
    ]
    passes = tuple(StepPass(rows, 0.010 + 0.001 * rows, 0.008, None) for rows in (1, 2, 5))
    result = SpeedResult(True, {0.0: pairs}, {0.0: [Skipped("q9", 1, 9999)]})
    result.hindsight = {0.0: [(pair.category, Hindsight({"ngram": (0, 1, 0, 0, 0)}, {"ngram": 0.0})) for pair in pairs]}
    result.pass_costs = StepReport("float32", 64, 1, 1e10, 1e11, passes, None)
    return json.loads(json.dumps({**result.as_dict(), "settings": {"model": "tiny"}, **provenance(3)}))


def test_markdown_has_the_numbers_and_where_they_come_from(report):
    text = markdown(report)
    (chat,) = (line for line in text.splitlines() if line.startswith("| chat |"))
    assert "| 4.0 | 8.0 | 2.00x |" in chat
    assert "1.00 0.50" in chat
    assert "20.0% / 60.0% / 20.0%" in chat
    (other,) = (line for line in text.splitlines() if line.startswith("| a\\|b<c> |"))
    assert "| 4.0 | 5.0 | 1.25x |" in other
    assert "1 differ" in other
    assert re.search(r"\| overall \| 2 \| 4\.0 \| 6\.2 \| 1\.54x \|", text)
    assert "question q9 from turn 2 (9999 tokens)" in text
    # Two tokens a round of 0.25 s, less 0.075 s around the pass, and 0.05 s for drafting and 0.002 s for two rows more.
    assert "| 2.20x (+10%) | 1.33x |" in chat
    assert "The formula of expected speed gives 1.66x, +7.6% off: within 10%." in text
    for name in ("command", "commit", "versions", "hardware", "seed"):
        assert f"- {name}: " in text


class _Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
        self.addresses = []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag


def test_page_is_whole_loads_nothing_and_has_the_numbers(report):
    page = html(report)
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.addresses == []
    assert "url(" not in page
    assert "@import" not in page
    assert "<td>2.00x</td>" in page
    assert "a|b&lt;c&gt;" in page
    assert "b<c>" not in page
    assert page.count("<svg") == 3
    for title in ("Speed by category", "Acceptance by position", "Cost of a pass against draft length"):
        assert title in page
    assert "roofline, 4: 8 ms" in page
    assert "measured, 4: 15 ms" in page


def test_header_says_what_drafters_could_have_learned(report):
    for render in (markdown, html):
        assert "One engine per side lives through all questions" in render(report)
        assert "side that were started: 2." in render(report)
        cold = {**report, "settings": {"model": "tiny", "cold": True}}
        assert "A fresh engine and drafter for every request" in render(cold)


def test_cost_of_the_policy_is_printed_where_there_is_one(report):
    assert "length policy" not in markdown(report)
    report["temperatures"][0]["overall"]["speculative"]["policy_seconds"] = 0.013
    sentence = "The length policy itself takes 1.00% of the decoding time, 3250 microseconds a round."
    assert sentence in markdown(report)
    assert sentence in html(report)


def test_page_without_drafts_or_roofline_has_no_empty_plots(report):
    for figures in (report["temperatures"][0]["overall"], *report["temperatures"][0]["categories"].values()):
        figures["acceptance_by_position"] = []
    for each in report["pass_costs"]["passes"]:
        each["roofline_seconds"] = None
    page = html(report)
    assert page.count("<svg") == 2
    assert "nothing drafted" in page
    assert "roofline" not in page


def test_bars_are_as_high_as_their_values():
    root = ElementTree.fromstring(bars("Speed", "tokens/s", ["a", "b"], {"plain": [5.0, 10.0], "fast": [0.0, 20.0]}))
    heights = {
        bar.findtext("title"): float(bar.get("height"))
        for bar in root.iter("rect")
        if bar.findtext("title") is not None
    }
    assert heights["a, plain: 5 tokens/s"] == pytest.approx(heights["b, fast: 20 tokens/s"] / 4, abs=0.1)
    assert heights["a, fast: 0 tokens/s"] == 0.0


def test_lines_go_through_their_points():
    root = ElementTree.fromstring(lines("Cost", "ms", "rows", {"measured": [(0.0, 0.0), (5.0, 10.0), (10.0, 20.0)]}))
    xs, ys = zip(*((float(mark.get("cx")), float(mark.get("cy"))) for mark in root.iter("circle")), strict=True)
    assert xs[1] == pytest.approx((xs[0] + xs[2]) / 2, abs=0.1)
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.1)
    assert xs[0] < xs[2]
    assert ys[0] > ys[2]
    (path,) = root.iter("polyline")
    assert len(path.get("points").split()) == 3


def test_plot_of_nothing_is_still_a_plot():
    ElementTree.fromstring(bars("Speed", "tokens/s", [], {"plain": []}))
    ElementTree.fromstring(lines("Cost", "ms", "rows", {}))


def test_plot_of_its_own_is_an_image_file():
    root = ElementTree.fromstring(standalone(bars("Speed", "x", ["a"], {"plain": [1.0]})))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "--first:" in root.findtext("{http://www.w3.org/2000/svg}style")
