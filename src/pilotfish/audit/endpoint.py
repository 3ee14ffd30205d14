"""Level `endpoint`: a server's law and its greedy texts, judged from outside.

Owns the sequential test and the verdicts; knows no server's insides. One server is compared with another that runs the
same weights without speculation, or with a local model whose law is known exactly. Two questions are asked of sampled
text: does the next token depend on what came before it as it should (a statistic over all prefixes seen), and does
each token come as often as it should (counts per completion). Looks are taken at a sixteenth, an eighth, ... and all of
the budget, and the level's false-alarm rate is spent over them: half at the last look, half of the rest before it.

A known law needs half the tokens of a second server: the noncentrality of a departure d of law p after n tokens is
n sum d^2 / p against a known law, and n/2 of it against a second sample of the same size.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable

from pilotfish.audit.endpoint_client import Completion, Server
from pilotfish.audit.endpoint_sampling import (
    COMMON_TOKENS,
    Answer,
    EndpointPlan,
    ReferenceLaw,
    Sample,
    known_law,
    two_samples,
)
from pilotfish.audit.results import LawPlot, Level
from pilotfish.audit.statistics import smallest_total_variation

LOOKS = 5
GREEDY_TOKENS = 32
NEAR_TIE = 0.25
"""Nats. A bfloat16 logit between 16 and 32 is known to 1/8; two of them may trade places within twice that."""


def run_endpoint(server: Server, reference: Server | ReferenceLaw, plan: EndpointPlan) -> Level:
    """Runs the level.

    Args:
        server: the one under audit.
        reference: a server that decodes the same weights plainly, or the law itself.
    """
    began = time.monotonic()
    findings: list[str] = []
    notes: list[str] = []
    greedy_tests = 0
    if isinstance(reference, Server):
        greedy_tests = _compare_greedy(server, reference, plan, findings, notes)
    else:
        greedy_tests = _check_greedy(server, reference, plan, findings, notes)
    sample = Sample(server)
    other = Sample(reference) if isinstance(reference, Server) else None
    p_values: list[float] = []
    degrees = looks = 0
    law_found = False
    for look in range(LOOKS):
        alpha = plan.false_alarm_rate / 2 ** (LOOKS - look)
        target = plan.tokens >> (LOOKS - 1 - look)
        sample.draw(plan, target)
        if other is not None:
            other.draw(plan, target)
        if other is not None:
            answers: Iterable[Answer] = two_samples(sample, other)
        else:
            assert not isinstance(reference, Server), "a law or a server"
            answers = known_law(sample, reference)
        looks += 1
        for answer in answers:
            p_values.append(answer.p_value)
            degrees = max(degrees, answer.degrees)
            if answer.p_value < alpha / 2 and not law_found:
                findings.append(
                    f"sampled text: {answer.question} (p = {answer.p_value:.1e} at {sample.tokens} sampled tokens)"
                )
        law_found = any(finding.startswith("sampled text") for finding in findings)
        if law_found:
            break
    notes += _could_not(sample, other, plan)
    if not sample.tokens or (other is not None and not other.tokens):
        findings.append("no text could be sampled: " + ("; ".join(server.trouble.messages) or "the answers were empty"))
    effective = sample.tokens if other is None else sample.tokens // 2
    smallest = smallest_total_variation(effective, min(max(degrees, 1), COMMON_TOKENS), plan.false_alarm_rate / 4)
    return Level(
        name="endpoint",
        tests=greedy_tests + 2 * looks,
        samples=sample.tokens + (other.tokens if other is not None else 0),
        false_alarm_rate=plan.false_alarm_rate,
        smallest_effect={"total variation of how often a token comes": smallest},
        findings=tuple(findings),
        notes=tuple(notes),
        p_values=tuple(p_values),
        laws=_plots(sample, other, reference),
        seconds=time.monotonic() - began,
    )


# --- greedy text


def _compare_greedy(
    server: Server, reference: Server, plan: EndpointPlan, findings: list[str], notes: list[str]
) -> int:
    """Greedy texts of both, and the margin where they part."""
    tests = 0
    for prompt in plan.prompts:
        mine, theirs = (
            one.complete(prompt, max_tokens=GREEDY_TOKENS, temperature=0.0, seed=plan.seed, logprobs=2)
            for one in (server, reference)
        )
        if not mine or not theirs:
            notes.append(f"could not test: no greedy text for {prompt!r}")
            continue
        tests += 1
        if mine[0].text == theirs[0].text:
            continue
        margin = _margin(mine[0], theirs[0])
        if margin is None:
            notes.append(
                f"could not test: greedy texts differ after {prompt!r}, but without logprobs nobody can say whether "
                "that is a near tie"
            )
        elif margin > NEAR_TIE:
            findings.append(f"greedy texts differ after {prompt!r} by a margin of {margin:.2f} nats")
        else:
            notes.append(f"greedy texts differ after {prompt!r} at a near tie of {margin:.2f} nats")
    return tests


def _margin(mine: Completion, theirs: Completion) -> float | None:
    """By how much the reference preferred its own token where the texts part."""
    if mine.tokens is None or theirs.tokens is None or theirs.alternatives is None:
        return None
    place = 0
    while place < min(len(mine.tokens), len(theirs.tokens)) and mine.tokens[place] == theirs.tokens[place]:
        place += 1
    if place >= min(len(mine.tokens), len(theirs.tokens), len(theirs.alternatives)):
        return None
    told = theirs.alternatives[place]
    own, other = told.get(theirs.tokens[place]), told.get(mine.tokens[place])
    if own is None or not told:
        return None
    return abs(own - (other if other is not None else min(told.values())))


def _check_greedy(server: Server, law: ReferenceLaw, plan: EndpointPlan, findings: list[str], notes: list[str]) -> int:
    """Each greedy token against the most probable one of the known law."""
    tests = 0
    for prompt in plan.prompts:
        answer = server.complete(prompt, max_tokens=8, temperature=0.0, seed=plan.seed, logprobs=1)
        if not answer or answer[0].tokens is None:
            notes.append(f"could not test: no greedy tokens for {prompt!r}")
            continue
        tests += 1
        tokens = answer[0].tokens
        for place, token in enumerate(tokens):
            expected = law(prompt, tokens[:place])
            if expected is None:
                break
            margin = math.log(max(expected.values())) - math.log(max(expected.get(token, 0.0), 1e-300))
            if margin > NEAR_TIE:
                findings.append(f"greedy token {place} after {prompt!r} is {token!r}, {margin:.2f} nats below the best")
                break
    return tests


# --- words and pictures


def _could_not(sample: Sample, other: Sample | None, plan: EndpointPlan) -> list[str]:
    """What was not tested, plainly."""
    notes = []
    for one in (sample, other):
        if one is None:
            continue
        name, trouble = one.server.base_url, one.server.trouble
        notes.append(f"{name}: {one.tokens} tokens sampled in {one.requests} requests")
        if one.without_tokens:
            notes.append(f"could not test: {name} gives no logprobs, so texts were compared as wholes")
        if trouble.rate_limited:
            notes.append(f"{name} refused {trouble.rate_limited} requests for their rate; they were sent again")
        if trouble.errors:
            notes.append(f"{name} failed {trouble.errors} requests: {'; '.join(trouble.messages[:3])}")
        if one.tokens < plan.tokens and one.requests >= plan.requests:
            notes.append(f"could not test further: the budget of {plan.requests} requests is used up")
    return notes


def _plots(sample: Sample, other: Sample | None, reference: Server | ReferenceLaw) -> tuple[LawPlot, ...]:
    """First tokens after each prompt, observed and expected."""
    plots = []
    for prompt, completions in sample.completions.items():
        counts: dict[str, int] = defaultdict(int)
        for tokens in completions:
            counts[tokens[0] if tokens else ""] += 1
        names = sorted(counts, key=lambda name: -counts[name])[:COMMON_TOKENS]
        observed = tuple(counts[name] / len(completions) for name in names)
        if other is not None:
            theirs = other.completions.get(prompt, [])
            expected = tuple(sum(t[:1] == (name,) for t in theirs) / max(1, len(theirs)) for name in names)
        else:
            assert not isinstance(reference, Server), "a law or a server"
            law = reference(prompt, ()) or {}
            expected = tuple(law.get(name, 0.0) for name in names)
        plots.append(LawPlot(f"first token after {prompt!r}", observed, expected))
    return tuple(plots)
