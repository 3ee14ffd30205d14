"""From a data set to a back-off table in a directory that the engine loads, with what it gives on held-out text.

Owns the order. Counting is `pool.py`'s.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pilotfish.drafters.backoff import TABLE_FILE
from pilotfish.drafters.shipped import write_description
from pilotfish.errors import DataSetError, InvalidInputError
from pilotfish.models.files import resolve
from pilotfish.train.dataset import DataSet, Split
from pilotfish.train.disk import write_whole
from pilotfish.train.pool import Text, build_table, save_table, table_tokens_per_round
from pilotfish.train.pool_laws import TopOfLaws

MOST_HELD_OUT = 400
"""Held-out conversations measured."""
LAW_TOKENS = 8
"""Of each row's law that go into the table: what comes after the eighth is nearly never among an entry's successors."""


def make_pool(
    model: str,
    directory: Path,
    output: Path,
    *,
    orders: Sequence[int],
    max_bytes: int,
    min_count: int,
    sizes: int,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Builds, writes and measures a table.

    Args:
        model: the target, by path or name.
        directory: of its data set.
        output: directory to write.
        orders, max_bytes, min_count: see `build_table`.
        sizes: draft sizes to measure, in nodes.
        origin: command, commit, versions and hardware, for the record.

    Returns:
        what is written to `training.json`: entries, size, tokens per round on held-out text.

    Raises:
        DataSetError: the data is another model's, damaged or empty; or the disk is full.
        InvalidInputError: an option is out of range.
    """
    if sizes < 1:
        raise InvalidInputError(f"sizes={sizes}: expected at least 1 draft size to measure")
    files = resolve(model)
    data = DataSet(directory, fingerprint=files.fingerprint)
    # What the target thought is in the data where the states after its last layer are; else its choices are counted.
    last = files.config.num_layers
    laws = None
    if last in data.manifest.boundaries:
        laws = TopOfLaws(files.config, files.weights, LAW_TOKENS, data.manifest.model.weights)
    texts = _texts(data, "train", laws, last)
    table = build_table(texts, orders=orders, max_bytes=max_bytes, min_count=min_count)
    held_out = _texts(data, "held_out")[:MOST_HELD_OUT]
    if not held_out:
        raise DataSetError(f"{directory} has no held-out conversation to measure on: make more data")
    save_table(table, output, fingerprint=files.fingerprint, vocab_size=files.config.vocab_size)
    rounds = table_tokens_per_round(table, held_out, sizes)
    result = {
        "entries": {str(length): len(order) for length, order in table.orders.items()},
        "counted": "laws" if laws is not None else "tokens",
        "file_bytes": (output / TABLE_FILE).stat().st_size,
        "tokens_per_round": rounds,
        "held_out_conversations": len(held_out),
        "data_directory": str(directory),
        "answer_tokens": data.manifest.totals.answer_tokens,
        "target": files.fingerprint,
        "origin": dict(origin),
    }
    write_whole(output / "training.json", json.dumps(result, indent=2).encode() + b"\n")
    write_whole(output / "README.md", _card(result, files.name).encode())
    write_description(output, files.fingerprint, "table")
    return result


def _texts(data: DataSet, split: Split, laws: TopOfLaws | None = None, last: int = 0) -> list[Text]:
    """A split's conversations; their arrays are parts of whole ones, made before anything is read.

    Small arrays kept between large ones that are not leave gaps that no large one fits into: with an array of its own
    for each conversation, three million tokens took 10 GB.
    """
    places = [place for place in data.places(split) if place.answer_tokens]
    size = sum(place.tokens for place in places)
    tokens, chosen = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
    law = None if laws is None else (np.zeros((size, laws.count), np.int32), np.zeros((size, laws.count), np.float32))
    found, stop = [], 0
    for place in places:
        start, stop = stop, stop + place.tokens
        each = data.read(place, [last] if laws is not None else [])
        tokens[start:stop], chosen[start:stop] = each.tokens.numpy(), each.loss_mask.numpy()
        own = None
        if laws is not None and law is not None:  # there is a row for each token but the last
            own = law[0][start : stop - 1], law[1][start : stop - 1]
            own[0][:], own[1][:] = laws(each.hidden[last])
        found.append(Text(tokens[start:stop], chosen[start:stop], own))
    return found


def _card(result: Mapping[str, Any], model: str) -> str:
    rounds = "\n".join(f"| {k} | {value:.3f} |" for k, value in enumerate(result["tokens_per_round"], 1))
    return f"""# Back-off table for {Path(model).name}

What the target says after each few tokens of its own text, made by `pilotfish train pool`. It changes how
fast answers come, never what they are. `LLM(..., speculative_config={{"method": "lookup", "model": "THIS DIRECTORY"}})`

| | |
|---|---|
| target checksum | `{result["target"][:16]}` |
| data | `{Path(result["data_directory"]).name}`, {result["answer_tokens"]:,} answer tokens |
| command | `{result["origin"].get("command", "unknown")}` |
| commit | `{result["origin"].get("commit", "unknown")}` |
| counted | {result["counted"]} |
| entries by context length | `{json.dumps(result["entries"])}` |
| size | {result["file_bytes"] / 1e6:.1f} MB |

Tokens per round of the table alone on {result["held_out_conversations"]} held-out conversations:

| drafted nodes | tokens per round |
|---|---|
{rounds}
"""
