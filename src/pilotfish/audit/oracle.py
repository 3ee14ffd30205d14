"""An independent account of what should come out: laws, rules and noise in float64, in plain Python and numpy.

Shares no code with `sampling` and `verify`, which it judges, and is written for clearness alone. p = target, q = draft.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Context = tuple[int, ...]

# --- laws


def softmax(logits: Floats) -> Floats:
    """Probabilities of float64 logits; minus infinity is probability 0."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def scale(logits: Floats, temperature: float) -> Floats:
    """Logits divided by the temperature; at 0 only the highest (lowest id of equals) stays."""
    if temperature == 0:
        only = np.full_like(logits, -np.inf)
        only[int(np.argmax(logits))] = 0.0
        return only
    return logits / temperature


def keep_highest(logits: Floats, count: int) -> Floats:
    """Only the `count` highest logits, lowest ids first among equals."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = np.full_like(logits, -np.inf)
    kept[order[:count]] = logits[order[:count]]
    return kept


def keep_mass(logits: Floats, mass: float) -> Floats:
    """Only the most probable tokens, up to and including the one whose cumulative probability reaches `mass`."""
    probabilities = softmax(logits)
    kept = np.full_like(logits, -np.inf)
    reached = 0.0
    for token in sorted(range(len(logits)), key=lambda token: (-probabilities[token], token)):
        kept[token] = logits[token]
        reached += probabilities[token]
        if reached >= mass:
            break
    return kept


def keep_share(logits: Floats, share: float) -> Floats:
    """Only tokens at least `share` times as probable as the most probable one."""
    probabilities = softmax(logits)
    return np.where(probabilities >= share * probabilities.max(), logits, -np.inf)


def keep_typical(logits: Floats, mass: float) -> Floats:
    """Only the tokens whose information is nearest to the entropy, until their mass reaches `mass`."""
    probabilities = softmax(logits)
    information = np.array([-math.log(p) if p > 0 else math.inf for p in probabilities])
    entropy = sum(p * i for p, i in zip(probabilities, information, strict=True) if p > 0)
    kept = np.full_like(logits, -np.inf)
    reached = 0.0
    for token in sorted(range(len(logits)), key=lambda token: (abs(information[token] - entropy), token)):
        kept[token] = logits[token]
        reached += probabilities[token]
        if reached >= mass:
            break
    return kept


def add(logits: Floats, biases: Mapping[int, float]) -> Floats:
    """Logits with a bias on some tokens."""
    changed = logits.copy()
    for token, bias in biases.items():
        changed[token] += bias
    return changed


def repeat_less(logits: Floats, seen: Sequence[int], penalty: float) -> Floats:
    """Positive logits of tokens seen divided by the penalty, negative ones multiplied."""
    changed = logits.copy()
    for token in set(seen):
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    return changed


def lower(logits: Floats, output: Sequence[int], frequency: float, presence: float) -> Floats:
    """Logits of tokens in the output lowered, by their count and by their presence."""
    changed = logits.copy()
    for token in set(output):
        changed[token] -= frequency * list(output).count(token) + presence
    return changed


def only(logits: Floats, tokens: Sequence[int]) -> Floats:
    """Nothing but these tokens."""
    return np.array([logit if token in tokens else -np.inf for token, logit in enumerate(logits)])


def without(logits: Floats, tokens: Collection[int]) -> Floats:
    """None of these tokens."""
    return np.array([-np.inf if token in tokens else logit for token, logit in enumerate(logits)])


def end_if_nothing_is_left(logits: Floats, end: int) -> Floats:
    """The end token alone where no token is possible, else the logits as they are."""
    if np.isfinite(logits).any():
        return logits
    return np.array([0.0 if token == end else -np.inf for token in range(len(logits))])


def completing(output: Sequence[int], sequences: Sequence[Sequence[int]]) -> set[int]:
    """Tokens that would complete one of the sequences in the output."""
    return {
        sequence[-1]
        for sequence in sequences
        if len(output) >= len(sequence) - 1 and tuple(output[len(output) - len(sequence) + 1 :]) == tuple(sequence[:-1])
    }


def repeating(text: Sequence[int], size: int) -> set[int]:
    """Tokens that would complete an n-gram that the text already has."""
    if len(text) < size - 1:
        return set()
    tail = tuple(text[len(text) - size + 1 :])
    return {text[i + size - 1] for i in range(len(text) - size + 1) if tuple(text[i : i + size - 1]) == tail}


# --- rules, exactly


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way a rule may end: the accepted path, its probability, and the law of the next token."""

    path: tuple[int, ...]
    probability: float
    next_law: Floats


@dataclass(frozen=True, slots=True)
class ToyDraft:
    """A draft and the laws around it, float64: `target[0]` at the root, `target[i + 1]` at node i; q per node."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    target: Floats
    draft: Floats

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root's child down to `node`."""
        found: list[int] = []
        while node >= 0:
            found.insert(0, node)
            node = self.parents[node]
        return tuple(found)


RuleOracle = Callable[[ToyDraft], Iterator[Outcome]]


def _normalised(weights: Floats, otherwise: Floats) -> Floats:
    total = weights.sum()
    return np.asarray(weights / total) if total > 0 else otherwise


def rejection(toy: ToyDraft) -> Iterator[Outcome]:
    """Token after token with min(1, p/q), then the residual (Leviathan et al., https://arxiv.org/abs/2211.17192)."""
    reached = 1.0
    for node, token in enumerate(toy.tokens):
        p, q = toy.target[node], toy.draft[node]
        accepted = min(1.0, p[token] / q[token])
        residual = _normalised(np.maximum(p - q, 0), p)
        yield Outcome(toy.path(node - 1), reached * (1 - accepted), residual)
        reached *= accepted
    yield Outcome(toy.path(len(toy.tokens) - 1), reached, toy.target[len(toy.tokens)])


def block(toy: ToyDraft) -> Iterator[Outcome]:
    """The largest node whose test succeeds (Sun et al., https://arxiv.org/abs/2403.10444)."""
    count = len(toy.tokens)
    weight = [1.0]
    for node, token in enumerate(toy.tokens):
        weight.append(min(1.0, weight[-1] * toy.target[node][token] / toy.draft[node][token]))
    success = [1.0]
    for node in range(1, count):
        mass = np.maximum(weight[node] * toy.target[node] - toy.draft[node], 0).sum()
        denominator = mass + 1 - weight[node]
        success.append(mass / denominator if denominator > 0 else 1.0)
    success.append(weight[count])
    later_fail = 1.0
    for accepted in range(count, -1, -1):
        p = toy.target[accepted]
        if accepted < count:
            law = _normalised(np.maximum(weight[accepted] * p - toy.draft[accepted], 0), p)
        else:
            law = p
        probability = success[accepted] if accepted > 0 else 1.0
        yield Outcome(toy.path(accepted - 1), later_fail * probability, law)
        later_fail *= 1 - probability


def traversal(toy: ToyDraft) -> Iterator[Outcome]:
    """Leftmost leaf first, a rejected leaf's mass handed to its parent (Weng et al., https://arxiv.org/abs/2505.12398)."""
    target = [row.copy() for row in toy.target]
    weight = [1.0] + [0.0] * len(toy.tokens)
    waiting = {
        node: [c for c, parent in enumerate(toy.parents) if parent == node] for node in range(-1, len(toy.tokens))
    }
    reached = 1.0
    current = -1
    while True:
        while waiting[current]:
            child = waiting[current].pop(0)
            token = toy.tokens[child]
            weight[child + 1] = min(1.0, weight[current + 1] * target[current + 1][token] / toy.draft[child][token])
            current = child
        accepted = weight[current + 1] if current >= 0 else 1.0
        yield Outcome(toy.path(current), reached * accepted, target[current + 1])
        if current < 0:
            return
        reached *= 1 - accepted
        above = toy.parents[current] + 1
        rest = np.maximum(weight[above] * target[above] - toy.draft[current], 0)
        mass = rest.sum()
        denominator = mass + 1 - weight[above]
        target[above] = _normalised(rest, target[above])
        weight[above] = mass / denominator if denominator > 0 else 1.0
        current = above - 1


RULES: dict[str, RuleOracle] = {"rejection": rejection, "block": block, "traversal": traversal}


# --- noise, from the documented layout alone

TARGET, DRAFT, ACCEPT, RESAMPLE = range(4)


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 on Python integers (Salmon et al., https://doi.org/10.1145/2063384.2063405)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & 0xFFFFFFFF, (left >> 32) ^ c3 ^ k1, left & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, stream: int, node: int, position: int, start: int) -> float:
    """A ratio stream's number in (0, 1): 26 high bits of each of two words, and a half step."""
    high, low, _, _ = philox((node, position, stream, start), (seed & 0xFFFFFFFF, seed >> 32))
    return ((((high >> 6) << 26) | (low >> 6)) + 0.5) * 2.0**-52


def gumbel(seed: int, position: int, token: int) -> float:
    """The target's noise of one token at one position."""
    words = philox((token // 4, position, TARGET, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return -math.log(-math.log((words[token % 4] + 0.5) * 2.0**-32))
