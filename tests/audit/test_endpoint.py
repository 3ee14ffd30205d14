"""The endpoint level against a mock server: the real case of a biased law, honest servers, and servers that misbehave.

Detection of the biased law within 20,000 sampled tokens: against a known law the noncentrality is
20,000 * 0.00498 = 100 on 2 degrees of freedom, seen with probability above 0.9999; against a second server of the same
size it is half of that, seen with probability 0.98. The cases below have fixed seeds.
"""

import numpy as np
import pytest

from pilotfish.audit.endpoint import run_endpoint
from pilotfish.audit.endpoint_client import Server
from pilotfish.audit.endpoint_reference import LocalReference
from pilotfish.audit.endpoint_sampling import EndpointPlan
from pilotfish.audit.table_model import Table, TableExecutor
from pilotfish.errors import InvalidInputError
from tests.audit.mock_server import BIASED, HONEST, WORDS, mock_server

PLAN = EndpointPlan(tokens=20_000, per_request=128)


def known(prompt, before):
    return dict(zip(WORDS, HONEST, strict=True))


@pytest.mark.parametrize("salt", range(3))
def test_biased_law_is_found_within_20000_tokens_against_a_known_law(salt):
    with mock_server(BIASED, salt=salt) as url:
        level = run_endpoint(Server(url), known, PLAN)
    assert not level.passed
    assert level.samples <= 20_000
    assert "sampled text" in level.findings[0]


def test_biased_law_is_found_within_20000_tokens_of_each_of_two_servers():
    with mock_server(BIASED, salt=1) as url, mock_server(salt=2) as other:
        level = run_endpoint(Server(url), Server(other), PLAN)
    assert not level.passed
    assert level.samples <= 40_000


@pytest.mark.parametrize("salt", range(2))
def test_honest_server_passes(salt):
    with mock_server(salt=salt) as url, mock_server(salt=100 + salt) as other:
        assert run_endpoint(Server(url), Server(other), PLAN).findings == ()
        level = run_endpoint(Server(url), known, PLAN)
    assert level.findings == ()
    assert level.samples <= 20_000
    assert level.smallest_effect["total variation of how often a token comes"] < 0.06


def test_server_without_logprobs_is_tested_by_its_texts_and_that_is_said():
    with mock_server(BIASED, salt=1, logprobs=False) as url, mock_server(salt=2, logprobs=False) as other:
        level = run_endpoint(Server(url), Server(other), EndpointPlan(tokens=8_000, per_request=128))
    assert any("gives no logprobs" in note for note in level.notes)
    assert level.samples > 0


def test_rate_limits_and_errors_are_survived_and_told():
    with mock_server(salt=1, refuse_every=3, fail_every=7) as url:
        level = run_endpoint(Server(url), known, EndpointPlan(tokens=2_000, per_request=16))
    assert level.findings == ()
    assert any("for their rate" in note for note in level.notes)
    assert any("HTTP 500" in note for note in level.notes)


def test_server_that_always_fails_is_a_finding_not_a_pass():
    with mock_server(fail_every=1) as url:
        level = run_endpoint(Server(url), known, EndpointPlan(tokens=100, requests=3, prompts=("x",)))
    assert not level.passed
    assert "no text could be sampled" in level.findings[-1]


def test_budget_of_requests_is_kept_and_told():
    with mock_server() as url:
        server = Server(url)
        level = run_endpoint(server, known, EndpointPlan(tokens=20_000, requests=5, per_request=4, prompts=("x",)))
    assert server.requests == 5 + 1
    assert any("budget of 5 requests" in note for note in level.notes)


@pytest.mark.parametrize(("gap", "found"), [(0.1, False), (2.0, True)])
def test_greedy_difference_is_judged_by_its_margin(gap, found):
    few = EndpointPlan(tokens=64, per_request=16)
    with mock_server(slips=True) as wrong, mock_server(gap=gap) as right:
        level = run_endpoint(Server(wrong), Server(right), few)
    assert "greedy texts differ" in " ".join([*level.findings, *level.notes])
    assert any("greedy" in finding for finding in level.findings) == found


def test_greedy_difference_without_logprobs_is_told_and_not_judged():
    few = EndpointPlan(tokens=64, per_request=16)
    with mock_server(slips=True, logprobs=False) as wrong, mock_server(logprobs=False) as right:
        level = run_endpoint(Server(wrong), Server(right), few)
    assert level.findings == ()
    assert any("nobody can say" in note for note in level.notes)


def test_greedy_token_below_the_best_of_a_known_law_is_found():
    with mock_server(slips=True) as url:
        level = run_endpoint(Server(url), known, EndpointPlan(tokens=64, per_request=16))
    assert any("greedy token 2" in finding for finding in level.findings)


def test_impossible_token_is_found_at_once():
    with mock_server() as url:
        level = run_endpoint(Server(url), lambda prompt, before: {WORDS[1]: 0.6, WORDS[2]: 0.4}, PLAN)
    assert any("probability 0" in finding for finding in level.findings)
    assert level.samples < 2_000


def test_local_model_is_a_reference_by_the_texts_of_its_tokens():
    words = (*WORDS, " ten")  # two ids of one text: their probabilities add up, and as a prefix they are unknown
    table = Table(np.log(np.array([[*HONEST, 1e-9]] * 4, dtype=np.float32)))
    reference = LocalReference(
        TableExecutor(table), lambda text: [1, 2], lambda ids: "".join(words[token] for token in ids), 4
    )
    law = reference("a prompt", (WORDS[1], WORDS[2]))
    assert law == pytest.approx(dict(zip(WORDS, HONEST, strict=True)), abs=1e-6)
    assert reference("a prompt", (WORDS[0],)) is None
    assert reference("a prompt", (" eleven",)) is None
    with mock_server(BIASED, salt=5) as url:
        level = run_endpoint(Server(url), reference, PLAN)
    assert any("sampled text" in finding for finding in level.findings)


@pytest.mark.parametrize("url", ["", "localhost:80/v1", "ftp://localhost/v1", "http://127.0.0.1:9/v1"])
def test_address_that_nobody_answers_is_refused(url):
    with pytest.raises(InvalidInputError):
        Server(url)


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"requests": 0}, {"per_request": -1}, {"false_alarm_rate": 0.0}])
def test_plan_refuses_values_out_of_range(wrong):
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        EndpointPlan(**wrong)
