"""Level `noise`: the random numbers themselves, read off from outside through the sampler.

Owns the probes and their tests: Philox against published vectors, every number against the documented layout (by the
oracle's own generator), uniformity, independence of streams, positions, rounds, nodes and seeds, no number used twice,
and the same numbers after a restart and in any company.
"""

import time
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch

from pilotfish.audit import oracle
from pilotfish.audit.options import PLAIN
from pilotfish.audit.results import Level
from pilotfish.audit.seeds import derived_seed
from pilotfish.audit.statistics import Fit, Floats, independence_fit, smallest_total_variation, uniform_fit
from pilotfish.audit.subject import Subject
from pilotfish.sampling.noise import philox
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.sampler import Sampler

RUN_FALSE_ALARM = 3e-5
SIZES = {"ci": 2_000, "standard": 10_000, "full": 60_000}
RESOLUTION = 1024
"""A probe of the draft stream draws from a flat law over this many tokens, so the token tells where the number fell."""
BINS = 8

PUBLISHED = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
"""Known answers of Philox 4x32-10 (Random123): counter, key, output."""


class _Probe:
    """One request's numbers, as seen from outside."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.sampler: Sampler = subject.sampler(PLAIN.params(seed), RESOLUTION)
        self._flat = torch.ones(RESOLUTION) / RESOLUTION

    def draft(self, starts: Sequence[int], *, node: int = 0, ahead: int = 0) -> Floats:
        tokens = [self.sampler.draw(self._flat, start + ahead, start=start, node=node) for start in starts]
        return (np.array(tokens) + 0.5) / RESOLUTION

    def accept(self, starts: Sequence[int], *, node: int = 0) -> Floats:
        return np.array(
            [
                float(self.sampler.accept_uniforms([start + at for at in range(node + 1)], start)[node])
                for start in starts
            ]
        )

    def resample(self, starts: Sequence[int]) -> Floats:
        return np.array([self.sampler.resample_uniform(start, start) for start in starts])

    def target(self, positions: Sequence[int]) -> Floats:
        tokens = self.sampler.choices(torch.zeros(1, RESOLUTION).expand(len(positions), -1), _prefixes(positions))
        return (np.array(tokens) + 0.5) / RESOLUTION


def _prefixes(positions: Sequence[int]) -> list[Prefix]:
    return [Prefix(range(position), 1) for position in positions]


def run_noise(subject: Subject, size: str, seed: int) -> Level:
    """Runs the level."""
    began = time.monotonic()
    count = SIZES[size]
    own = derived_seed(seed, "noise")
    series = _series(subject, own, count)
    tests: list[tuple[str, Fit]] = [
        (f"{name} is not uniform", uniform_fit(values, 32)) for name, values in series.items()
    ]
    for left, right in combinations(series, 2):
        tests.append((f"{left} and {right} depend on each other", independence_fit(series[left], series[right], BINS)))
    alpha = RUN_FALSE_ALARM / len(tests)
    findings = [f"{text} (p = {fit.p_value:.1e}, {fit.samples} numbers)" for text, fit in tests if fit.p_value < alpha]
    exact = [_published(), _layout(subject, own), _reuse(subject, own, count), _restarts(subject, own)]
    findings += [finding for found in exact for finding in found]
    return Level(
        name="noise",
        tests=len(tests) + 4,
        samples=count * len(series),
        false_alarm_rate=RUN_FALSE_ALARM,
        smallest_effect={
            "total variation of a number's law": smallest_total_variation(count, 31, alpha),
            "total variation of the law of two numbers": smallest_total_variation(count, BINS**2 - 1, alpha),
        },
        findings=tuple(findings),
        notes=(f"{len(series)} series of {count} numbers, all pairs of them; each test at {alpha:.1e}",),
        p_values=tuple(fit.p_value for _, fit in tests),
        seconds=time.monotonic() - began,
    )


def _series(subject: Subject, seed: int, count: int) -> dict[str, Floats]:
    """Numbers of one request round after round, and of its neighbours in every direction, in the same order."""
    probe, starts = _Probe(subject, seed), range(1, count + 1)
    later, high = _Probe(subject, (seed + 1) % 2**64), _Probe(subject, seed ^ (1 << 40))
    positions = range(1, count + 1)
    return {
        "the draft draw": probe.draft(starts),
        "the draft draw one position on": probe.draft(starts, ahead=1),
        "a sibling's draft draw": probe.draft(starts, node=1),
        "the acceptance number": probe.accept(starts),
        "the acceptance number one node on": probe.accept(starts, node=1),
        "the resampling number": probe.resample(starts),
        "the target's choice": probe.target(positions),
        "the next seed's draft draw": later.draft(starts),
        "the next seed's resampling number": later.resample(starts),
        "the next seed's choice": later.target(positions),
        "a seed with another high half": high.accept(starts),
    }


def _published() -> list[str]:
    findings = []
    for counter, key, expected in PUBLISHED:
        c0, c1, c2, c3 = (np.array([word], dtype=np.uint64) for word in counter)
        if tuple(int(word[0]) for word in philox((c0, c1, c2, c3), key)) != expected:
            findings.append(f"Philox of counter {counter} and key {key} is not the published answer")
        if oracle.philox(counter, key) != expected:
            findings.append("the oracle's own Philox is wrong")
    return findings


def _layout(subject: Subject, seed: int) -> list[str]:
    """Numbers at random places of the documented layout, big seeds and positions included, against the oracle's."""
    rng = np.random.default_rng(seed)
    findings = []
    for _ in range(60):
        own = int(rng.integers(2**64, dtype=np.uint64))
        start = int(rng.integers(1, 2**20))
        node = int(rng.integers(6))
        probe = _Probe(subject, own)
        expected = oracle.uniform(own, oracle.DRAFT, node, start + node, start)
        if probe.draft([start], node=node, ahead=node)[0] != (int(expected * RESOLUTION) + 0.5) / RESOLUTION:
            findings.append("a draft draw is not at the documented place")
        if probe.accept([start], node=node)[0] != oracle.uniform(own, oracle.ACCEPT, node, start + node, start):
            findings.append("an acceptance number is not at the documented place")
        if probe.resample([start])[0] != oracle.uniform(own, oracle.RESAMPLE, 0, start, start):
            findings.append("a resampling number is not at the documented place")
        logits = torch.from_numpy(rng.standard_normal((1, 12))).float()
        place = int(rng.integers(1, 2**12))
        scores = [float(logits[0, token]) + oracle.gumbel(own, place, token) for token in range(12)]
        chosen = subject.sampler(PLAIN.params(own), 12).choices(logits, _prefixes([place]))[0]
        if chosen != int(np.argmax(scores)):
            findings.append("a choice of the target is not that of the documented noise")
    return sorted(set(findings))


def _reuse(subject: Subject, seed: int, count: int) -> list[str]:
    """No full-length number comes twice, over streams, positions, nodes, rounds and requests."""
    few = range(1, count // 4)
    values: list[float] = []
    for own in (seed, (seed + 1) % 2**64, seed ^ (1 << 40)):
        sampler = _Probe(subject, own).sampler
        for start in few:
            values += sampler.accept_uniforms([start, start + 1, start + 1], start).tolist()
            values.append(sampler.resample_uniform(start, start))
    repeated = len(values) - len(set(values))
    return [f"{repeated} of {len(values)} numbers were used before"] if repeated else []


def _restarts(subject: Subject, seed: int) -> list[str]:
    """A new sampler of the same seed gives the same numbers, and a row's choice does not depend on its company."""
    first, second, starts = _Probe(subject, seed), _Probe(subject, seed), range(1, 65)
    findings = []
    for name in ("draft", "accept", "resample", "target"):
        if not np.array_equal(getattr(first, name)(starts), getattr(second, name)(starts)):
            findings.append(f"the same seed gives other {name} numbers after a restart")
    together = first.target(starts)
    alone = np.array([first.target([position])[0] for position in reversed(starts)])[::-1]
    if not np.array_equal(together, alone):
        findings.append("a row's choice depends on the rows beside it")
    return findings
