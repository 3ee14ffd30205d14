"""Level `theory`: every rule on toy laws by exact enumeration, no chance left in it.

Owns the toys, the shapes and the assertions. All drafts are enumerated with their probabilities, the rule's uniforms
are integrated out of the production function itself (`integrate.py`), short outputs are continued by the target's law;
what remains is the joint law of the first k + 1 tokens, and the target's own is its only excuse.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch

from pilotfish.audit import oracle
from pilotfish.audit.integrate import Outcome, outcome_law
from pilotfish.audit.oracle import Context, Floats, ToyDraft
from pilotfish.audit.results import Level
from pilotfish.audit.subject import Subject
from pilotfish.audit.toys import Toy, random_toy, toy_pairs
from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import ROOT, Draft
from pilotfish.verify import RatioRule, Rule

EXACT = 1e-12
LENGTH_EXACT = 1e-11
CHAINS = {1: (-1,), 2: (-1, 0), 3: (-1, 0, 1), 4: (-1, 0, 1, 2)}
TREES = {"2x1": (-1, -1, 0, 1), "3-star": (-1, -1, -1), "ragged": (-1, 0, -1, 0), "(2,2)": (-1, -1, 0, 0, 1, 1)}
CI_PAIRS = ("random", "peaked", "certain target", "p = 0 where q > 0")
_LEAST, _MOST = 2.0**-53, 1 - 2.0**-53


@dataclass(frozen=True, slots=True)
class Case:
    """A rule on all drafts of one shape in one toy world."""

    rule: str
    pair: str
    parents: tuple[int, ...]
    vocab_size: int
    replacement: bool = True
    certain: bool = False

    @property
    def name(self) -> str:
        kind = "certain" if self.certain else "sampled" if self.replacement else "sampled without replacement"
        return f"{self.rule}, {kind} draft {list(self.parents)}, {self.pair}, vocabulary {self.vocab_size}"


def make_cases(size: str) -> list[Case]:
    """All rules x toys x shapes at `standard`; a slice of them for continuous integration."""
    cases = []
    pairs = [pair for pair in toy_pairs(0, 3) if size != "ci" or pair in CI_PAIRS]
    chains = [(5, CHAINS[1]), (3, CHAINS[2]), (2, CHAINS[3])]
    if size != "ci":
        chains += [(3, CHAINS[1]), (4, CHAINS[2]), (3, CHAINS[3]), (2, CHAINS[4])]
    for rule in oracle.RULES:
        cases += [Case(rule, pair, parents, vocab) for pair in pairs for vocab, parents in chains]
        cases += [Case(rule, "random", parents, 5, certain=True) for parents in CHAINS.values()]
    shapes = (TREES["2x1"],) if size == "ci" else tuple(TREES.values())
    for parents in shapes:
        for pair in pairs if size != "ci" else ("random", "peaked"):
            vocab = 3 if size != "ci" and pair == "random" and len(parents) < 5 else 2
            cases += [Case("traversal", pair, parents, vocab, replacement) for replacement in (True, False)]
        cases.append(Case("traversal", "random", parents, 5, certain=True))
    return cases


# --- enumeration


def drafts_of(case: Case, target: Toy, drafter: Toy) -> Iterator[tuple[ToyDraft, Floats | None, float]]:
    """(draft in float64, reported float32 rows, probability) of every draft that can be drawn."""
    parents = case.parents
    vocab_size = case.vocab_size

    def finish(tokens: tuple[int, ...], rows: list[Floats]) -> ToyDraft:
        contexts: list[Context] = [()]
        for token, parent in zip(tokens, parents, strict=True):
            contexts.append((*contexts[parent + 1], token))
        return ToyDraft(
            tokens,
            parents,
            np.stack([target.law(context) for context in contexts]),
            np.stack([row / row.sum() for row in rows]),
        )

    if case.certain:
        tokens = tuple((7 * parent + 2 * node + 3) % vocab_size for node, parent in enumerate(parents))
        yield finish(tokens, [np.eye(vocab_size)[token] for token in tokens]), None, 1.0
        return

    def grow(
        tokens: tuple[int, ...], rows: list[Floats], probability: float
    ) -> Iterator[tuple[ToyDraft, Floats, float]]:
        node = len(tokens)
        if node == len(parents):
            yield finish(tokens, rows), np.stack(rows), probability
            return
        context: Context = ()
        above = parents[node]
        while above != ROOT:
            context = (tokens[above], *context)
            above = parents[above]
        row = drafter.row(context).copy()
        if not case.replacement:
            row[[tokens[other] for other in range(node) if parents[other] == parents[node]]] = 0.0
        if not row.sum() > 0:
            return  # a certain drafter has no second child to offer
        for token in np.flatnonzero(row):
            yield from grow((*tokens, int(token)), [*rows, row], probability * row[token] / row.sum())

    yield from grow((), [], 1.0)


def measured(rule: RatioRule, name: str, toy: ToyDraft, rows: Floats | None) -> tuple[dict[Outcome, float], float]:
    """The exact law of (accepted tokens, next token) of one draft, and the expected number accepted."""
    draft = Draft(toy.tokens, toy.parents, None if rows is None else torch.from_numpy(rows).float())
    target_probs = torch.from_numpy(toy.target)
    count = len(toy.tokens)
    hints: dict[int, list[float]] = {count: []}
    left = 1.0
    for outcome in oracle.RULES[name](toy):
        if outcome.path:
            hints[outcome.path[-1]] = [outcome.probability / left if left > 0 else 0.0]
        left -= outcome.probability
        hints[count] += np.cumsum(outcome.next_law)[:-1].tolist()
    if name == "rejection":  # its outcomes end at the test after their path
        for node, token in enumerate(toy.tokens):
            hints[node] = [min(1.0, float(toy.target[node][token] / toy.draft[node][token]))]

    def function(point: Sequence[float]) -> Outcome:
        verdict = rule(draft, target_probs, torch.tensor(point[:count], dtype=torch.float64), point[count])
        return tuple(draft.tokens[node] for node in verdict.path), verdict.next_token

    law = outcome_law(function, [*_deciding_order(name, toy.parents), count], hints)
    return law, sum(mass * len(path) for (path, _), mass in law.items())


def _deciding_order(name: str, parents: tuple[int, ...]) -> list[int]:
    """Nodes in the order in which a rule's tests decide: it keeps the boxes few, and nothing depends on it."""
    if name == "rejection":
        return list(range(len(parents)))

    def visit(node: int) -> list[int]:
        below = [found for child, parent in enumerate(parents) if parent == node for found in visit(child)]
        return below if node == ROOT else [*below, node]

    return visit(ROOT)


def _continued(emitted: Mapping[Context, float], target: Toy, length: int) -> dict[Context, float]:
    """Outputs shorter than `length` go on by the target's own law."""
    full: dict[Context, float] = defaultdict(float)
    for tokens, mass in emitted.items():
        if len(tokens) >= length:
            full[tokens[:length]] += mass
            continue
        law = target.law(tokens)
        longer = {(*tokens, token): mass * float(law[token]) for token in range(len(law))}
        for context, part in _continued(longer, target, length).items():
            full[context] += part
    return full


def _depth(parents: tuple[int, ...]) -> int:
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return max(depths)


def check(rule: Rule, case: Case, seed: int) -> tuple[list[str], int]:
    """All assertions of one case: findings, and how many drafts were gone through."""
    assert rule.verify is not None, "a ratio rule"
    target, drafter = toy_pairs(seed, case.vocab_size)[case.pair]
    depth = _depth(case.parents)
    emitted: dict[Context, float] = defaultdict(float)
    length = expected_length = 0.0
    findings: list[str] = []
    drafts = 0
    drawn = 0.0
    for toy, rows, probability in drafts_of(case, target, drafter):
        drafts += 1
        drawn += probability
        law, accepted = measured(rule.verify, case.rule, toy, rows)
        length += probability * accepted
        expected_length += probability * sum(o.probability * len(o.path) for o in oracle.RULES[case.rule](toy))
        for (path, token), mass in law.items():
            emitted[(*path, token)] += probability * mass
        findings += _impossible(rule.verify, case, toy, rows)
    if drawn < 1 - 1e-9:
        return [], 0  # without replacement, some drafts of this shape do not exist here
    found = _continued(emitted, target, depth + 1)
    expected = _continued({(): 1.0}, target, depth + 1)
    error = max(abs(found.get(tokens, 0.0) - expected.get(tokens, 0.0)) for tokens in {*found, *expected})
    if error > EXACT:
        findings.append(f"{case.name}: the joint law of the first {depth + 1} tokens is off by {error:.2g}")
    if abs(length - expected_length) > LENGTH_EXACT:
        findings.append(f"{case.name}: accepts {length:.6f} tokens on average, the formula says {expected_length:.6f}")
    return list(dict.fromkeys(findings)), drafts


def _impossible(rule: RatioRule, case: Case, toy: ToyDraft, rows: Floats | None) -> list[str]:
    """Tokens of probability 0 must not come out at any uniforms, the rigged 0 and the largest below 1 included."""
    draft = Draft(toy.tokens, toy.parents, None if rows is None else torch.from_numpy(rows).float())
    target_probs = torch.from_numpy(toy.target)
    for accept, resample in itertools.product((0.0, _LEAST, _MOST), repeat=2):
        uniforms = torch.full((len(toy.tokens),), accept, dtype=torch.float64)
        verdict = rule(draft, target_probs, uniforms, resample)
        row = 0
        for node, token in [*((n, draft.tokens[n]) for n in verdict.path), (-1, verdict.next_token)]:
            if not toy.target[row][token] > 0:
                at = f"at uniforms {accept:.3g} and {resample:.3g}"
                return [f"{case.name}: emits token {token}, of probability 0, {at}"]
            row = node + 1
    return []


def check_match(rule: Rule, seed: int) -> tuple[list[str], int]:
    """`match` over all choices of the target at all nodes: the emitted tokens are its choices, with its joint law."""
    from pilotfish.verify import match

    findings: list[str] = []
    cases = 0
    if rule.verify is not None:
        return ["match is not the rule that takes the target's choices"], 0
    for parents in (*CHAINS.values(), TREES["2x1"], TREES["3-star"]):
        vocab_size = 2 if len(parents) > 3 else 3
        target = random_toy((seed, 11), vocab_size)
        for tokens in itertools.product(range(vocab_size), repeat=len(parents)):
            draft = Draft(tokens, parents)
            contexts: list[Context] = [()]
            for token, parent in zip(tokens, parents, strict=True):
                contexts.append((*contexts[parent + 1], token))
            emitted: dict[Context, float] = defaultdict(float)
            distinct = list(dict.fromkeys(contexts))  # equal contexts are one choice: siblings may repeat a token
            for chosen in itertools.product(range(vocab_size), repeat=len(distinct)):
                choice = dict(zip(distinct, chosen, strict=True))
                probability = math.prod(float(target.law(context)[token]) for context, token in choice.items())
                emitted[match(draft, [choice[context] for context in contexts]).tokens(draft)] += probability
            depth = max(len(context) for context in contexts) + 1
            found, expected = _continued(emitted, target, depth), _continued({(): 1.0}, target, depth)
            error = max(abs(found.get(t, 0.0) - expected[t]) for t in expected)
            cases += 1
            if error > EXACT:
                findings.append(f"match, draft {list(tokens)} {list(parents)}: the joint law is off by {error:.2g}")
    return findings[:3], cases


def check_refusals(subject: Subject) -> list[str]:
    """A chain rule must refuse a tree by name."""
    draft = Draft((0, 1), (-1, -1))
    findings = []
    for rule in subject.rules.values():
        if rule.trees or rule.verify is None:
            continue
        try:
            rule.verify(draft, torch.full((3, 2), 0.5), torch.tensor([0.5, 0.5], dtype=torch.float64), 0.5)
        except SpeculativeConfigError as error:
            if rule.name not in str(error):
                findings.append(f"{rule.name} refuses a tree without naming itself")
        else:
            findings.append(f"{rule.name} takes a tree, which it is not made for")
    return findings


# --- expected accepted lengths


def accepted_lengths(seed: int, size: str) -> tuple[list[str], list[str]]:
    """The table of expected accepted drafted tokens, and what is wrong with it. By the oracle's rules, exactly."""
    rows = ["expected accepted tokens of a draft, exactly:", "toy pair | draft | rejection | block | traversal"]
    findings = []
    shapes = [("chain of 2", CHAINS[2]), ("chain of 3", CHAINS[3]), ("chain of 4", CHAINS[4])]
    for pair in ("random", "close", "peaked", "equal laws", "certain draft", "q = 0 where p > 0"):
        for label, parents in shapes:
            lengths = {rule: _expected_length(rule, pair, parents, 3, True, seed) for rule in oracle.RULES}
            rows.append(f"{pair} | {label} | " + " | ".join(f"{lengths[rule]:.3f}" for rule in oracle.RULES))
            if lengths["block"] < lengths["rejection"] - EXACT:
                findings.append(f"block accepts less than rejection on {pair}, {label}")
            if pair == "certain draft" and abs(lengths["block"] - lengths["rejection"]) > EXACT:
                findings.append(f"block and rejection differ on a certain draft, {label}")
    trees = TREES if size != "ci" else {"2x1": TREES["2x1"]}
    for label, parents in trees.items():
        for replacement in (True, False):
            length = _expected_length("traversal", "random", parents, 3, replacement, seed)
            rows.append(f"random | {label}{'' if replacement else ' without replacement'} | - | - | {length:.3f}")
    return rows, findings


def _expected_length(
    rule: str, pair: str, parents: tuple[int, ...], vocab_size: int, replacement: bool, seed: int
) -> float:
    target, drafter = toy_pairs(seed, vocab_size)[pair]
    case = Case(rule, pair, parents, vocab_size, replacement)
    return sum(
        probability * sum(outcome.probability * len(outcome.path) for outcome in oracle.RULES[rule](toy))
        for toy, _, probability in drafts_of(case, target, drafter)
    )


def run_theory(
    subject: Subject, size: str, seed: int, cases: Sequence[Case] | None = None, pool: Executor | None = None
) -> Level:
    """Runs the level, or these cases alone; `seed` chooses the random toys.

    Args:
        pool: processes to share the cases out to; this one alone by default.
    """
    began = time.monotonic()
    findings: list[str] = []
    table: list[str] = []
    drafts = tests = 0
    chosen = cases if cases is not None else make_cases(size)
    spread = map if pool is None else pool.map
    for found, seen in spread(check, [subject.rules[case.rule] for case in chosen], chosen, itertools.repeat(seed)):
        findings += found
        drafts += seen
        tests += 3 if seen else 0
    if cases is None:
        found, seen = check_match(subject.rules["match"], seed)
        table, wrong = accepted_lengths(seed, size)
        findings += [*found, *check_refusals(subject), *wrong]
        drafts += seen
        tests += seen + len(table) - 2 + len(subject.rules)
    return Level(
        name="theory",
        tests=tests,
        samples=drafts,
        false_alarm_rate=0.0,
        smallest_effect={"difference of a joint probability": EXACT, "difference of an expected length": LENGTH_EXACT},
        findings=tuple(findings),
        notes=("samples are drafts gone through, each with all its uniforms integrated out", *table),
        seconds=time.monotonic() - began,
    )
