"""Fits the weights of `drafters/lookup_weights.py` on a data set's conversations.

    python benchmarks/fit_lookup.py DATA [--conversations 900] [--table-share 0.75] [--output lookup_weights.json]

DATA is a directory that `pilotfish train data` made with the states after the last layer. A table is made of the first
part of its conversations, and the weights are fitted on the others but for a last part, on which they are measured: at
every token of an answer, which of the tokens that anything names was the target's. The network starts from a logistic
regression, which is its first unit. What the target thinks likely is learned from the delivered tokens' rows alone; in
use, the rows of rejected ones teach as well.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from pilotfish.drafters import lookup_weights as at
from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.lookup_index import CONTEXT, LEAST_UNNAMED, PythonLookupIndex
from pilotfish.models.files import resolve
from pilotfish.sampling.noise import gumbel
from pilotfish.train.dataset import Conversation, DataSet
from pilotfish.train.pool import Text, build_table
from pilotfish.train.pool_laws import TopOfLaws

RIDGE = 1.0
EPOCHS, BATCH, RATE, DECAY = 16, 2048, 1e-2, 3e-2
HELD_OUT = 0.2
"""Share of the conversations outside the table's that only measure."""
TEMPERATURES = (0.3, 0.7, 1.0, 1.3)
NONE = -1e4
"""Log probability of no candidate; an infinity would leave the fit no gradient."""
AGAIN = 40
"""Conversations in which the target chooses again: each place costs a whole row of logits and of noise."""


def samples(texts: Sequence[Text], table: BackoffTable | None) -> tuple[np.ndarray, np.ndarray]:
    """What speaks for each token that was named, `[named, weight]`, and whether it was the target's."""
    # A unit's sum is one of weights: with unit vectors for weights it is the vector of their factors.
    units = at.LookupWeights(np.eye(at.COUNT, dtype=np.float32), ())
    features, labels = [], []
    for text in texts:
        index = PythonLookupIndex(units, table)
        tokens, (ids, probs) = text.tokens.tolist(), text.law
        known = 0
        for place in np.flatnonzero(text.chosen).tolist():
            index.extend(tokens[known:place])
            known = place
            for token, factors in index.candidates(tokens[max(0, place - CONTEXT) : place], 1 << 31).items():
                features.append(factors)
                labels.append(token == tokens[place])
            row = probs[place - 1]
            index.learn(
                tokens[place - 2] if place > 1 else -1,
                tokens[place - 1],
                ids[place - 1].tolist(),
                (row / row.sum()).tolist(),
            )
    return np.array(features), np.array(labels)


def loss_of(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(logits, wanted)


def logistic(inputs: torch.Tensor, wanted: torch.Tensor, rounds: int) -> torch.Tensor:
    weights = torch.zeros(at.COUNT, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=rounds, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = loss_of(inputs @ weights, wanted) + RIDGE * weights.square().sum() / len(wanted)
        total.backward()
        return total

    optimizer.step(loss)
    return weights.detach()


def network(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    sums = inputs @ weights
    return sums[:, 0] + torch.relu(sums[:, 1:]) @ torch.from_numpy(at.SIGNS[1:]).float()


def fitted(features: np.ndarray, labels: np.ndarray, held_out: int, rounds: int) -> np.ndarray:
    """The factors' weights, `[COUNT, UNITS]`; measured on the last `held_out` samples."""
    inputs, wanted = torch.from_numpy(features), torch.from_numpy(labels).float()
    size = len(wanted) - held_out
    generator = torch.Generator().manual_seed(0)
    weights = torch.empty(at.COUNT, at.UNITS).uniform_(-0.1, 0.1, generator=generator)
    weights[:, 0] = logistic(inputs[:size], wanted[:size], rounds)
    before = loss_of(inputs[size:] @ weights[:, 0], wanted[size:])
    weights[~inputs[:size].any(0)] = 0.0  # of what never came, nothing is known
    weights.requires_grad_(True)
    optimizer = torch.optim.AdamW([weights], lr=RATE, weight_decay=DECAY)
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - epoch / EPOCHS)
        for part in torch.randperm(size, generator=generator).split(BATCH):
            optimizer.zero_grad()
            loss_of(network(inputs[part], weights), wanted[part]).backward()
            optimizer.step()
    with torch.no_grad():
        after = loss_of(network(inputs[size:], weights), wanted[size:])
    print(f"{size:,} named tokens, {held_out:,} held out: loss {before:.5f} by the logistic regression, {after:.5f}")
    return weights.detach().numpy()


@dataclass(frozen=True)
class Choices:
    """What the target chose again at one temperature.

    `[place, candidate]`: log probabilities as estimated (`NONE`: there is no further one) and the noise; `[place]`: log
    probability of what nothing named, and which candidate it was, or their number.
    """

    temperature: float
    estimates: torch.Tensor
    noise: torch.Tensor
    unnamed: torch.Tensor
    chosen: torch.Tensor


def choices(
    read: Sequence[Conversation], texts: Sequence[Text], laws: TopOfLaws, index: Callable[[], PythonLookupIndex]
) -> list[Choices]:
    """The target's choices at some of the places, at each temperature."""
    found: list[tuple[np.ndarray, ...]] = []
    last = max(read[0].hidden)
    for conversation, text in zip(read, texts, strict=True):
        tokens, (ids, probs) = text.tokens.tolist(), text.law
        own, known = index(), 0
        places = np.flatnonzero(text.chosen)
        for place, logits in zip(places.tolist(), laws.logits(conversation.hidden[last][places - 1]), strict=True):
            own.extend(tokens[known:place])
            known = place
            named = own.probabilities(tokens[max(0, place - CONTEXT) : place], len(logits))
            drawn = gumbel(len(found), place, len(logits))
            scores = logits.numpy().astype(np.float64)
            candidates = list(named)
            winners = [
                candidates.index(w) if (w := int(np.argmax(scores / t + drawn))) in named else -1 for t in TEMPERATURES
            ]
            found.append((np.log(list(named.values())), drawn[candidates], np.array(winners)))
            row = probs[place - 1]
            before = tokens[place - 2] if place > 1 else -1
            own.learn(before, tokens[place - 1], ids[place - 1].tolist(), (row / row.sum()).tolist())
    width = max(len(estimates) for estimates, _, _ in found)
    estimates = torch.full((len(found), width), NONE, dtype=torch.float64)
    noise = torch.zeros_like(estimates)
    for row, (log_probs, drawn, _) in enumerate(found):
        estimates[row, : len(log_probs)] = torch.from_numpy(log_probs)
        noise[row, : len(drawn)] = torch.from_numpy(drawn)
    unnamed = (1.0 - estimates.exp().sum(1)).clamp(min=LEAST_UNNAMED).log()
    winners = torch.tensor(np.array([each for _, _, each in found]))
    return [
        Choices(temperature, estimates, noise, unnamed, torch.where(winners[:, i] < 0, width, winners[:, i]))
        for i, temperature in enumerate(TEMPERATURES)
    ]


def fitted_noise(found: Sequence[Choices], rounds: int) -> list[float]:
    weights = torch.tensor([1.0, 0.7, -1.0, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=rounds, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = weights.new_zeros(())
        for each in found:
            named = weights[0] * (each.estimates + weights[1] * each.temperature * each.noise)
            rest = weights[2] + weights[3] * each.temperature + weights[4] * each.unnamed
            total = total + F.cross_entropy(torch.cat((named, rest[:, None]), 1), each.chosen)
        total.backward()
        return total

    optimizer.step(loss)
    print(f"{len(found[0].chosen):,} places with noise, loss {loss().item() / len(found):.5f}")
    return weights.tolist()


def written(fits: Mapping[str, tuple[np.ndarray, Sequence[float]]]) -> str:
    """The file's text: of each fit the factors' weights and the noise's."""
    parts = []
    for name, (factors, noise) in fits.items():
        rows = ",\n".join(f"   {_numbers(row)}" for row in factors.tolist())
        parts.append(f' "{name}": {{\n  "noise": {_numbers(noise)},\n  "factors": [\n{rows}\n  ]\n }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _numbers(values: Sequence[float]) -> str:
    return json.dumps([0 if round(value, 3) == 0 else round(value, 3) for value in values])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--conversations", type=int, default=900)
    parser.add_argument("--table-share", type=float, default=0.75)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--output", type=Path, default=at.FILE)
    options = parser.parse_args()
    files = resolve(options.model)
    data = DataSet(options.data, fingerprint=files.fingerprint)
    laws = TopOfLaws(files.config, files.weights, 8, data.manifest.model.weights)
    last = files.config.num_layers
    places = data.places("train")[: options.conversations]
    texts = []
    for place in places:
        each = data.read(place, [last])
        texts.append(Text(each.tokens.numpy(), each.loss_mask.numpy(), laws(each.hidden[last])))
    split = int(len(texts) * options.table_share)
    table = build_table(texts[:split], orders=(1, 2, 3, 4), max_bytes=1 << 40)
    rest = texts[split:]
    read = [data.read(place, [last]) for place in places[split:][:AGAIN]]
    own = rest[: len(rest) - max(1, int(len(rest) * HELD_OUT))]
    fits = {}
    for name, source in (("without_table", None), ("with_table", table)):
        features, labels = samples(own, source)
        new_features, new_labels = samples(rest[len(own) :], source)
        both = np.concatenate((features, new_features)), np.concatenate((labels, new_labels))
        factors = fitted(*both, len(new_labels), options.rounds)
        index = partial(PythonLookupIndex, at.LookupWeights(factors.astype(np.float64), ()), source)
        noise = fitted_noise(choices(read, rest[:AGAIN], laws, index), options.rounds)
        fits[name] = factors if source is not None else factors[: at.TABLE], noise
    options.output.write_text(written(fits), encoding="utf-8")


if __name__ == "__main__":
    main()
