"""Level `identity`: the same seed gives the same tokens, speculation on or off, in any company, preempted or not.

Owns the grid of drafters, draft lengths, batches and interruptions, and the judgement of a difference. On an exact
executor ids and the logits behind them must be equal bit for bit. On another, the first difference is reported with
its margin: how far apart the two tokens were in the plain run. Below `NEAR_TIE` it is arithmetic, above it a finding.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from pilotfish.audit import oracle
from pilotfish.audit.company import CompanyCount, run_company
from pilotfish.audit.drafters import TreeDrafter
from pilotfish.audit.echo import EchoDrafter
from pilotfish.audit.options import BY_NAME, GREEDY, HOT, PLAIN, Setting
from pilotfish.audit.recorder import Recorder
from pilotfish.audit.results import Level
from pilotfish.audit.seeds import derived_seed
from pilotfish.audit.subject import Generated, Job, Subject, generate
from pilotfish.audit.table_model import TableExecutor, nearby, random_table
from pilotfish.audit.tiny_model import BOUNDARIES, tiny_executor, tiny_head
from pilotfish.drafters.base import Drafter
from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.drafters.early_exit import EarlyExitDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.models.base import Executor
from pilotfish.sampling.sampler import Sampler

NEAR_TIE = 1e-4
"""float32: tokens whose scores differ by less than this, relative to the largest logit above 1, may change places."""

VOCAB = 40
PROMPT_TEXTS = (
    "The pilot fish swims ahead of the shark and",
    "def mean(values):\n    return sum(values) / len(values)\n\ndef median(values):\n    ",
    "Question: why does the tide come twice a day?\nAnswer:",
    "one two three one two three one two three one",
    "Dear neighbour, the parcel that you asked about",
    '{"harbour": "north", "boats": [{"name": "Gull", "length": 9}, {"name":',
)


@dataclass(slots=True)
class _Count:
    """What was compared, and what came of it."""

    tests: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    near_ties: int = 0
    largest_margin: float = 0.0
    largest_difference: float = 0.0
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, made: Sequence[Generated]) -> None:
        for one in made:
            self.drafted += one.request.counters.drafted_tokens
            self.accepted += one.request.counters.accepted_tokens


@dataclass(frozen=True, slots=True)
class ModelUnderTest:
    """A real model: its executor, and prompts as it reads them."""

    name: str
    executor: Executor
    vocab_size: int
    prompts: tuple[tuple[int, ...], ...]


def run_identity(subject: Subject, size: str, seed: int, model: ModelUnderTest | None = None) -> Level:
    """Runs the level on toy models, and on a real one where there is one."""
    began = time.monotonic()
    count = _Count()
    _toys(subject, size, seed, count)
    notes = []
    if model is not None:
        real = _Count()
        _real(subject, size, seed, model, real)
        for name in ("tests", "tokens", "drafted", "accepted"):
            setattr(count, name, getattr(count, name) + getattr(real, name))
        count.findings += real.findings
        notes.append(
            f"{model.name}: {real.tokens} tokens compared, {real.accepted} of {real.drafted} drafted ones accepted; "
            + (
                "the executor is exact, so logits were compared bit for bit"
                if model.executor.exact
                else f"the executor is not exact: {real.near_ties} first differences at near ties, largest margin "
                f"{real.largest_margin:.1e}, largest difference of a logit {real.largest_difference:.1e}"
            )
        )
    else:
        notes.append("no real model was tested, only toy ones")
    if not count.drafted > count.accepted > 0:
        count.findings.append("drafts were not both accepted and rejected, so nothing was tested")
    return Level(
        name="identity",
        tests=count.tests,
        samples=count.tokens,
        false_alarm_rate=0.0,
        smallest_effect={"different tokens": 1.0, "logit margin on an executor that is not exact": NEAR_TIE},
        findings=tuple(count.findings),
        notes=(f"{count.accepted} of {count.drafted} drafted tokens accepted", *count.notes, *notes),
        seconds=time.monotonic() - began,
    )


def _toys(subject: Subject, size: str, seed: int, count: _Count) -> None:
    entropy = derived_seed(seed, "identity")
    table = random_table((entropy, 0), VOCAB, order=2, rows=150, spread=2.0)
    draft = nearby(table, (entropy, 1), 0.7)
    target = TableExecutor(table)
    rng = np.random.default_rng((entropy, 2))
    prompts = [rng.integers(VOCAB, size=int(length)).tolist() for length in (1, 2, 3, 7, 20, 300)]
    drafters: dict[str, Callable[[], Drafter]] = {
        "ngram": lambda: NgramDrafter(1, 3),
        "draft_model": lambda: DraftModelDrafter(TableExecutor(draft)),
        "tree": lambda: TreeDrafter(draft),
    }
    settings = [PLAIN, GREEDY, HOT, BY_NAME["top_k 3 + top_p 0.8"]]
    settings += [
        BY_NAME["presence_penalty 1.5 + top_p 0.8"],
        BY_NAME["repetition_penalty 1.5 + no_repeat_ngram_size 2"],
    ]
    if size == "ci":
        settings = [PLAIN, GREEDY, BY_NAME["presence_penalty 1.5 + top_p 0.8"]]
    lengths = (1, 2, 3, 4) if size != "ci" else (3,)
    for setting in settings:
        jobs = [Job(prompt, setting, derived_seed(entropy, row), 24, 0) for row, prompt in enumerate(prompts)]
        plain = [made for job in jobs for made in generate(subject, target, None, "match", [job])]
        for kind, make in drafters.items():
            for draft_len in lengths:
                mixed = [replace(job, draft_len=draft_len - (row % 2)) for row, job in enumerate(jobs)]
                preempted = [replace(job, preempt_after=1 + row % 3) for row, job in enumerate(mixed)]
                for company, batch in (
                    ("in one batch", mixed),
                    ("in reverse order", mixed[::-1]),
                    ("alone", mixed[1:2]),
                    ("preempted in the middle", preempted),
                ):
                    made = generate(subject, target, make(), "match", batch)
                    if company == "in reverse order":
                        made = made[::-1]
                    count.add(made)
                    expected = plain[1:2] if company == "alone" else plain
                    _same(f"{kind}, k={draft_len}, {setting.name}, {company}", expected, made, count)
    for setting in (PLAIN, HOT):
        _continued(subject, target, drafters["draft_model"](), prompts, setting, entropy, count)
    if subject.sampler is Sampler:
        _in_company(target, drafters, prompts, size, entropy, count)
    for rule in subject.rules:
        jobs = [Job(prompt, PLAIN, derived_seed(entropy, row), 24, 3) for row, prompt in enumerate(prompts)]
        first, second = (generate(subject, target, drafters["draft_model"](), rule, jobs) for _ in range(2))
        _same(f"{rule}, the same seed a second time", first, second, count)


def _continued(
    subject: Subject,
    target: Executor,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    setting: Setting,
    entropy: int,
    count: _Count,
) -> None:
    """A request cut in half and taken up again with its text as the prompt ends as the whole one did."""
    jobs = [Job(prompt, setting, derived_seed(entropy, row), 24, 3) for row, prompt in enumerate(prompts)]
    whole = generate(subject, target, None, "match", jobs)
    rest = [
        replace(job, prompt=[*job.prompt, *made.output[:12]], max_tokens=12)
        for job, made in zip(jobs, whole, strict=True)
    ]
    for job, made, later in zip(jobs, whole, generate(subject, target, drafter, "match", rest), strict=True):
        count.tests += 1
        count.tokens += len(later.output)
        if later.output != made.output[12:]:
            count.findings.append(
                f"{setting.name}: taken up after 12 tokens, prompt of {len(job.prompt)} goes on otherwise"
            )


def _in_company(
    target: Executor,
    drafters: Mapping[str, Callable[[], Drafter]],
    prompts: Sequence[Sequence[int]],
    size: str,
    entropy: int,
    count: _Count,
) -> None:
    """The same under the real scheduler, where requests join, leave and are preempted; on tables and a tiny decoder."""
    found = CompanyCount()
    settings = [PLAIN.params(entropy), GREEDY.params(entropy)][: 1 if size == "ci" else 2]
    run_company(target, VOCAB, drafters, prompts, settings, found)
    model = tiny_executor(entropy, 16)
    if model.exact:
        # Two beginnings in common, each longer than a page of the cache.
        beginnings = [np.random.default_rng((entropy, place)).integers(16, size=70).tolist() for place in range(2)]
        shared = [[*beginnings[place % 2], *range(place + 1)] for place in range(6)]
        of_model: dict[str, Callable[[], Drafter]] = {
            "ngram": lambda: NgramDrafter(1, 3),
            "early_exit": lambda: EarlyExitDrafter(model, 1),
            "eagle": lambda: EagleDrafter(tiny_head(entropy, model.config), BOUNDARIES),
            "eagle tree": lambda: EagleDrafter(tiny_head(entropy, model.config), BOUNDARIES, 2),
        }
        run_company(model, 16, of_model, shared, settings, found)
    for name in ("tests", "tokens", "drafted", "accepted"):
        setattr(count, name, getattr(count, name) + getattr(found, name))
    count.findings += found.findings
    count.notes.append(
        f"{found.tests} requests compared in changing company: {found.preemptions} preemptions, {found.reused} tokens "
        "taken over from texts that began alike"
    )
    if not found.preemptions or (model.exact and not found.reused):
        count.findings.append("the scheduler preempted nobody, or no text was shared, so nothing was tested")


def _same(label: str, plain: Sequence[Generated], made: Sequence[Generated], count: _Count) -> None:
    for one, other in zip(plain, made, strict=True):
        count.tests += 1
        count.tokens += len(other.output)
        if one.output != other.output:
            place = _first_difference(one.output, other.output)
            count.findings.append(
                f"{label}: token {place} is {other.output[place : place + 1]}, plainly {one.output[place : place + 1]}"
            )
            return


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    agreed = 0
    while agreed < min(len(left), len(right)) and left[agreed] == right[agreed]:
        agreed += 1
    return agreed


# --- a real model


def _real(subject: Subject, size: str, seed: int, model: ModelUnderTest, count: _Count) -> None:
    entropy = derived_seed(seed, "identity of a model")
    exact = model.executor.exact
    prompts = model.prompts[: 2 if size == "ci" else 6 if exact else 4]
    length = 12 if size == "ci" else 28 if exact else 16
    settings = [GREEDY, HOT] if size != "ci" else [HOT]
    if size != "ci" and exact:
        settings.append(BY_NAME["temperature 0.6 + top_p 0.8"])
    for setting in settings:
        jobs = [Job(prompt, setting, derived_seed(entropy, row), length, 0) for row, prompt in enumerate(prompts)]
        plain = [_recorded(subject, model, None, [job]) for job in jobs]
        alone = [made for generated, _ in plain for made in generated]
        rows = [recorded for _, records in plain for recorded in records]
        known = {tuple(job.prompt): made.output for job, made in zip(jobs, alone, strict=True)}
        runs: list[tuple[str, Drafter | None, int, bool]] = [
            ("plain, in one batch", None, 0, False),
            ("ngram", NgramDrafter(1, 3), 4, False),
            ("chains right two times in three", EchoDrafter(known, entropy, width=1), 3, False),
            ("trees right two times in three, preempted", EchoDrafter(known, entropy, width=2), 2, True),
        ]
        if size != "ci" and exact:
            runs.append(("long chains", EchoDrafter(known, entropy + 1, width=1), 8, False))
            runs.append(("trees", EchoDrafter(known, entropy + 2, width=3), 4, False))
        for label, drafter, draft_len, preempt in runs:
            batch = [
                replace(job, draft_len=max(0, draft_len - row % 2), preempt_after=2 if preempt else None)
                for row, job in enumerate(jobs)
            ]
            made, recorded = _recorded(subject, model, drafter, batch)
            count.add(made)
            name = f"{model.name}, {label}, k={draft_len}, {setting.name}"
            for row in range(len(batch)):
                count.tests += 1
                count.tokens += len(made[row].output)
                _compare(
                    f"{name}, prompt {row}", batch[row], alone[row], rows[row], made[row], recorded[row], exact, count
                )


Rows = dict[int, torch.Tensor]


def _recorded(
    subject: Subject, model: ModelUnderTest, drafter: Drafter | None, jobs: Sequence[Job]
) -> tuple[list[Generated], list[Rows]]:
    """Outputs, and by position the logits that decided them."""
    recorder = Recorder(model.executor)
    made = generate(subject, recorder, drafter, "match", jobs, model.vocab_size)
    return made, [recorder.rows[one.request.sequence] for one in made]


def _compare(
    label: str,
    job: Job,
    plain: Generated,
    plain_rows: Rows,
    made: Generated,
    made_rows: Rows,
    exact: bool,
    count: _Count,
) -> None:
    """Ids and logits of one request in two runs."""
    place = _first_difference(plain.output, made.output)
    differs = place < max(len(plain.output), len(made.output))
    start = len(job.prompt)
    for position in range(start, start + min(place + 1, len(plain.output))):
        if position not in plain_rows or position not in made_rows:
            continue  # rows from before a preemption are gone
        if exact and not torch.equal(plain_rows[position], made_rows[position]):
            count.findings.append(f"{label}: the logits behind token {position - start} differ in their bits")
            return
        difference = float((plain_rows[position] - made_rows[position]).abs().max())
        count.largest_difference = max(count.largest_difference, difference)
    if not differs:
        return
    if exact or place >= min(len(plain.output), len(made.output)):
        count.findings.append(f"{label}: token {place} differs")
        return
    margin, bound = _margin(job, plain_rows[start + place], start + place, plain.output[place], made.output[place])
    count.largest_margin = max(count.largest_margin, margin)
    if margin <= bound:
        count.near_ties += 1
    else:
        count.findings.append(
            f"{label}: token {place} is {made.output[place]}, plainly {plain.output[place]}, "
            f"by a margin of {margin:.2g} where {bound:.2g} is arithmetic"
        )


def _margin(job: Job, row: torch.Tensor, position: int, chosen: int, other: int) -> tuple[float, float]:
    """How much better the plain choice was than the other token, in scores with noise, and the bound to judge by."""
    logits = row.double().numpy()
    temperature = float(job.setting.fields.get("temperature", 1.0))
    if temperature > 0:
        scores = {t: logits[t] / temperature + oracle.gumbel(job.seed, position, t) for t in (chosen, other)}
    else:
        scores, temperature = {t: logits[t] for t in (chosen, other)}, 1.0
    return abs(float(scores[chosen] - scores[other])), NEAR_TIE * max(1.0, float(np.abs(logits).max())) / temperature
