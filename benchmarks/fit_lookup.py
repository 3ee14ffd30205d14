"""Fits the weights of `drafters/lookup_weights.py` on a data set's conversations.

    python benchmarks/fit_lookup.py DATA [--table-share 0.85] [--rounds 60]

DATA is a directory that `pilotfish train data` made with the states after the last layer. A table is made of the first
part of its conversations, and the weights are fitted on the others: at every token of an answer, which of the tokens
that anything names was the target's. What the target thinks likely is learned from the delivered tokens' rows alone; in
use, the rows of rejected ones teach as well. Prints the file's two tuples.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pilotfish.drafters import lookup_weights as at
from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.lookup_index import CONTEXT, PythonLookupIndex
from pilotfish.models.files import resolve
from pilotfish.train.dataset import DataSet
from pilotfish.train.pool import Text, build_table
from pilotfish.train.pool_laws import TopOfLaws

RIDGE = 1.0


def samples(texts: Sequence[Text], table: BackoffTable | None) -> tuple[np.ndarray, np.ndarray]:
    """What speaks for each token that was named, `[named, weight]`, and whether it was the target's."""
    # A score is a sum of weights: with unit vectors for weights it is the vector of their factors.
    units = np.eye(at.COUNT, dtype=np.float32)
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


def fitted(features: np.ndarray, labels: np.ndarray, rounds: int) -> list[float]:
    weights = torch.zeros(at.COUNT, requires_grad=True)
    inputs, wanted = torch.from_numpy(features), torch.from_numpy(labels).float()
    optimizer = torch.optim.LBFGS([weights], max_iter=rounds, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = inputs @ weights
        total = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
        total = (total + RIDGE * weights.square().sum()) / len(wanted)
        total.backward()
        return total

    optimizer.step(loss)
    print(f"# {len(labels):,} named tokens, loss {loss().item():.5f}")
    return [round(weight, 3) for weight in weights.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--table-share", type=float, default=0.85)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    files = resolve(options.model)
    data = DataSet(options.data, fingerprint=files.fingerprint)
    laws = TopOfLaws(files.config, files.weights, 8)
    last = files.config.num_layers
    read = (data.read(place, [last]) for place in data.places("train"))
    texts = [Text(each.tokens.numpy(), each.loss_mask.numpy(), laws(each.hidden[last])) for each in read]
    split = int(len(texts) * options.table_share)
    table = build_table(texts[:split], orders=(1, 2, 3, 4), max_bytes=1 << 40)
    for name, source in (("WITHOUT_TABLE", None), ("WITH_TABLE", table)):
        print(f"{name} = {tuple(fitted(*samples(texts[split:], source), options.rounds))}")


if __name__ == "__main__":
    main()
