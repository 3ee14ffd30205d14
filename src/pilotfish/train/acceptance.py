"""How a student would fare as a drafter: acceptance by depth on held-out text of the target's own.

Owns the counting. Three figures for each depth k (from 1), none of which trusts what the training loss says:

- `agreement`: the student's most likely token is the target's, given the text so far as it is. What published
  accuracies mean.
- `greedy`: the same given that the k - 1 tokens before were agreed on, and that the text took the target's most likely
  token there too: acceptance at temperature 0, conditional on the prefix being accepted.
- `sampled`: `sum min(p, q)` where each start counts with the probability that its prefix was accepted,
  `prod min(1, q(x) / p(x))` along the text x: acceptance at temperature 1.

`walked` is what a projection stands on: tokens per round at each draft length, by going through the answers of
temperature 0 round by round as the engine will. Rounds begin after a rejection, where drafting tends to be harder than
on average, so a product of acceptances would promise too much.

A token outside the draft vocabulary is never accepted. Knows no speed; `projection.py` makes that of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pilotfish.train.losses import acceptance
from pilotfish.train.packs import Pack
from pilotfish.train.student import Depth, Student
from pilotfish.train.teacher import Teacher


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance by depth, the first entry at depth 1; see the module's text.

    Attributes:
        starts: how many starts each depth was counted from.
        walked: tokens per round at draft lengths 1, 2 and so on; `None` where no answer was of temperature 0.
    """

    agreement: tuple[float, ...]
    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    starts: tuple[int, ...]
    walked: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Scores:
    """Of one depth, by row of the pack that a draft starts at; what is not counted is false or zero.

    Attributes:
        counted: the depth can be reached from here.
        agrees: the student's best token is the target's.
        follows: the text's token is the target's best.
        matches: the student's best token is the text's.
        overlap: `sum min(p, q)`.
        ratio: `min(1, q(x) / p(x))` at the text's token x.
    """

    counted: Bool[Tensor, " row"]
    agrees: Bool[Tensor, " row"]
    follows: Bool[Tensor, " row"]
    matches: Bool[Tensor, " row"]
    overlap: Float[Tensor, " row"]
    ratio: Float[Tensor, " row"]


@torch.no_grad()
def measure_acceptance(student: Student, teacher: Teacher, packs: Sequence[Pack], depths: int) -> Acceptance:
    """A student's acceptance at depths 1 to `depths`.

    Args:
        teacher: at the temperature that acceptance is to be known for; over the student's `examined_ids`.
        packs: held-out ones.
    """
    sums = torch.zeros(depths, 6, dtype=torch.float64)
    was_training = student.training
    student.eval()
    tokens, rounds = [0] * depths, [0] * depths
    for pack in packs:
        scores = _scores(student, teacher, pack, depths)
        sums += _sums(scores)
        for draft_len, (delivered, taken) in enumerate(_walks(scores, pack)):
            tokens[draft_len] += delivered
            rounds[draft_len] += taken
    student.train(was_training)

    def share(part: int, whole: int) -> tuple[float, ...]:
        return tuple((sums[:, part] / sums[:, whole].clamp_min(1e-12)).tolist())

    starts = tuple(int(count) for count in sums[:, 0].tolist())
    walked = tuple(a / b for a, b in zip(tokens, rounds, strict=True)) if rounds[0] else None
    return Acceptance(share(1, 0), share(3, 2), share(5, 4), starts, walked)


def _walks(scores: Sequence[_Scores], pack: Pack) -> list[tuple[int, int]]:
    """Tokens and rounds at each draft length, over the answers of temperature 0."""
    reaches = scores[0].counted.tolist()
    # How many tokens a draft that starts at each row would get accepted, were it as long as can be.
    alive, accepted = torch.ones_like(scores[0].counted), torch.zeros(len(pack.tokens), dtype=torch.int64)
    for each in scores:
        alive = alive & each.matches
        accepted += alive.cpu()
    lengths = accepted.tolist()
    found = []
    for draft_len in range(1, len(scores) + 1):
        tokens = rounds = start = 0
        for size, temperature in zip(pack.lengths, pack.temperatures, strict=True):
            row = start
            start += size
            while row < start and temperature == 0:
                if not reaches[row]:
                    row += 1
                    continue
                delivered = min(lengths[row], draft_len) + 1
                tokens += sum(reaches[row : min(row + delivered, start)])
                rounds += 1
                row += delivered
        found.append((tokens, rounds))
    return found


def _sums(scores: Sequence[_Scores]) -> Float[Tensor, "depth 6"]:
    """By depth: starts, agreements; starts whose greedy prefix was accepted, agreements; weights, weighted overlaps."""
    reached = torch.ones_like(scores[0].counted)
    weight = torch.ones_like(scores[0].overlap)
    rows = []
    for each in scores:
        reached = reached & each.counted
        weight = weight * each.counted
        rows.append(
            [
                float(each.counted.sum()),
                float((each.counted & each.agrees).sum()),
                float(reached.sum()),
                float((reached & each.agrees).sum()),
                float(weight.sum()),
                float((weight * each.overlap).sum()),
            ]
        )
        reached = reached & each.agrees & each.follows
        weight = weight * each.ratio
    return torch.tensor(rows, dtype=torch.float64)


def _scores(student: Student, teacher: Teacher, pack: Pack, depths: int) -> list[_Scores]:
    starts = pack.starts(depths)
    found = student(pack, depths)
    answers = pack.answers.nonzero()[:, 0]
    law = teacher.whole(pack.hidden[teacher.boundary][answers], pack.following[answers])
    assert law.best is not None
    assert law.text is not None
    place = torch.full((len(pack.tokens),), -1, device=answers.device)
    place[answers] = torch.arange(len(answers), device=answers.device)
    column = torch.full((int(teacher.ids.max()) + 2,), -1, device=answers.device)
    column[teacher.ids] = torch.arange(len(teacher.ids), device=answers.device)
    by_depth = []
    for depth in range(depths):
        own = found[depth] if depth < len(found) else None
        if own is not None:
            made = _score(
                own,
                law.probs[place[own.laws]],
                law.best[place[own.laws]],
                law.text[place[own.laws]],
                pack,
                column,
                teacher.ids,
            )
        if not student.unrolls or own is not None:
            by_depth.append(_placed(made, found[0 if not student.unrolls else depth].laws, starts[depth], depth, pack))
        else:
            by_depth.append(_nothing(pack))
    return by_depth


def _score(
    own: Depth,
    target_probs: Float[Tensor, "start draft_vocab"],
    best: Int[Tensor, " start"],
    text_probs: Float[Tensor, " start"],
    pack: Pack,
    column: Int[Tensor, " known"],
    ids: Int[Tensor, " draft_vocab"],
) -> _Scores:
    """The scores of one depth's predictions, in their own order."""
    draft_probs = own.logits.softmax(-1)
    text = pack.following[own.laws]
    places = column[text.clamp_max(len(column) - 1)]
    said = draft_probs.gather(1, places.clamp_min(0)[:, None])[:, 0] * (places >= 0)
    return _Scores(
        torch.ones_like(best, dtype=torch.bool),
        ids[draft_probs.argmax(-1)] == best,
        text == best,
        ids[draft_probs.argmax(-1)] == text,
        acceptance(draft_probs, target_probs),
        (said / text_probs.clamp_min(1e-12)).clamp_max(1.0),
    )


def _placed(made: _Scores, laws: Tensor, starts: Tensor, depth: int, pack: Pack) -> _Scores:
    """Scores by law's row become scores by the row that a draft of this depth starts at."""
    rows = len(pack.tokens)
    by_law = torch.full((rows,), -1, device=laws.device)
    by_law[laws] = torch.arange(len(laws), device=laws.device)
    source = by_law[starts + depth + 1]
    starts, source = starts[source >= 0], source[source >= 0]

    def spread(values: Tensor) -> Tensor:
        return torch.zeros(rows, dtype=values.dtype, device=values.device).index_copy(0, starts, values[source])

    return _Scores(
        spread(made.counted),
        spread(made.agrees),
        spread(made.follows),
        spread(made.matches),
        spread(made.overlap),
        spread(made.ratio),
    )


def _nothing(pack: Pack) -> _Scores:
    false = torch.zeros_like(pack.answers)
    zero = torch.zeros(len(pack.answers), device=pack.answers.device)
    return _Scores(false, false, false, false, zero, zero)
