"""Every level passes the decoder as it is. That each can fail is shown in `test_controls.py`."""

import json
from itertools import product

import pytest

from pilotfish.audit.identity import run_identity
from pilotfish.audit.law import run_law
from pilotfish.audit.options import PAIRS, PLAIN, SINGLES
from pilotfish.audit.plans import SIZES, Plan, make_plans
from pilotfish.audit.run import LOCAL_LEVELS, audit
from pilotfish.audit.seeds import derived_seed
from pilotfish.audit.subject import Subject
from pilotfish.audit.theory import CHAINS, TREES, Case, accepted_lengths, make_cases, run_theory
from pilotfish.errors import InvalidInputError
from pilotfish.verify import RULES
from tests.audit.command import run_audit

SEED = 11


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """`pilotfish audit` at the size of continuous integration, and its report."""
    page = tmp_path_factory.mktemp("audit") / "report.html"
    options = ("--size", "ci", "--model", "none", "--workers", "1", "--json", "--html", str(page), "--seed", str(SEED))
    process = run_audit(*options)
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads(process.stdout), page.read_text(encoding="utf-8")


def test_all_local_levels_pass(whole_run):
    record, _ = whole_run
    assert record["passed"] is True
    assert [level["name"] for level in record["levels"]] == list(LOCAL_LEVELS)
    assert [level["findings"] for level in record["levels"]] == [[]] * 4


def test_every_level_says_what_it_did_and_what_it_would_have_seen(whole_run):
    record, _ = whole_run
    assert record.keys() == {"passed", "levels"}
    keys = {"name", "passed", "tests", "samples", "false_alarm_rate", "smallest_effect", "findings"}
    for level in record["levels"]:
        assert level.keys() == keys
        assert level["tests"] > 50
        assert level["samples"] > 400
        assert 0 <= level["false_alarm_rate"] <= 1e-4
        assert all(0 < effect <= 1 for effect in level["smallest_effect"].values())


def test_report_is_one_page_with_plots_and_nothing_from_elsewhere(whole_run):
    _, page = whole_run
    assert page.count("<svg") > 8
    assert "p-values" in page
    assert "observed" in page
    assert "by position" in page
    for outside in ("http:", "https:", "src=", "href=", "<script", "@import", "url("):
        assert outside not in page


def test_theory_passes_a_slice_of_its_cases():
    cases = [Case(rule, "random", CHAINS[2], 2) for rule in ("rejection", "block", "traversal")]
    level = run_theory(Subject(), "ci", SEED, [*cases, Case("traversal", "random", TREES["3-star"], 2, certain=True)])
    assert level.findings == ()
    assert level.tests == 12


def test_cases_cover_every_ratio_rule():
    assert len(make_cases("ci")) < len(make_cases("standard"))
    assert {case.rule for case in make_cases("ci")} == set(RULES) - {"match"}
    assert "without replacement" in Case("traversal", "random", (-1, -1), 3, replacement=False).name


def test_expected_accepted_lengths_show_block_above_rejection_and_nothing_gained_for_certain_drafts():
    table, wrong = accepted_lengths(SEED, "ci")
    assert wrong == []
    rows = {tuple(row.split(" | ")[:2]): row.split(" | ")[2:] for row in table[2:] if row.count("|") == 4}
    rejection, block, traversal = map(float, rows["close", "chain of 4"])
    assert rejection * 1.02 < block == traversal
    rejection, block, _ = map(float, rows["certain draft", "chain of 3"])
    assert rejection == block


def test_plans_cover_every_rule_drafter_option_and_pair():
    for size in ("ci", "standard"):
        plans = make_plans(SIZES[size])
        options = {plan.option for plan in plans}
        assert {setting.name for setting in (PLAIN, *SINGLES, *PAIRS)} <= options
        assert {plan.draft_len for plan in plans} == {1, 2, 3, 4}
        assert {plan.rule for plan in plans} == set(RULES)
        assert {plan.vocab_size for plan in plans} == {5, 8, 16, 50}
        assert {(plan.rule, plan.drafter) for plan in plans} >= set(product(RULES, ("early_exit", "eagle")))
    rules = {(plan.option, plan.rule) for plan in make_plans(SIZES["standard"])}
    assert len(rules) == len(options) * len(RULES)


def test_law_of_one_plan_passes_and_is_drawn():
    level = run_law(Subject(), [Plan("block", "draft_model", "top_k 3", 2, 5, 1, 1_500, core=True)], SEED)
    assert level.findings == ()
    assert level.samples >= 1_500
    assert 0 < level.acceptance[0].shares[1] < level.acceptance[0].shares[0] < 1
    assert sum(level.laws[0].observed) == pytest.approx(1)
    assert sum(level.laws[0].expected) == pytest.approx(1)


def test_law_of_a_plan_without_drafts_does_not_pass():
    level = run_law(Subject(), [Plan("match", "ngram", "no option", 0, 50, 1, 16)], SEED)
    assert any("nothing was drafted" in finding for finding in level.findings)


def test_identity_compares_tokens_of_a_real_executor(monkeypatch):
    from pilotfish.audit.identity import ModelUnderTest
    from tests.engine.tiny import VOCAB, tiny_target

    monkeypatch.setattr("pilotfish.audit.identity._toys", lambda *arguments: None)
    model = ModelUnderTest("tiny", tiny_target(), VOCAB, ((3, 4, 5), (1, 2, 1, 2)))
    level = run_identity(Subject(), "ci", SEED, model)
    assert level.findings == ()
    assert level.tests == 8
    assert any("is not exact" in note for note in level.notes)


def test_audit_tells_of_each_level_and_refuses_those_it_does_not_know():
    told = []
    report = audit(["noise"], size="ci", seed=SEED, workers=1, tell=told.append)
    assert report.levels == tuple(told)
    with pytest.raises(InvalidInputError, match="endpoint"):
        audit(["endpoint"])
    with pytest.raises(InvalidInputError, match="huge"):
        audit(["noise"], size="huge")


def test_derived_seeds_differ_and_repeat():
    assert derived_seed(1, "a") == derived_seed(1, "a")
    assert len({derived_seed(1, "a"), derived_seed(1, "b"), derived_seed(2, "a")}) == 3
    assert 0 <= derived_seed("x") < 2**64
