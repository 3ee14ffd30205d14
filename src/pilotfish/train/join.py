"""Several data sets of one target as one: made on several machines or cores, or a domain's beside general text.

Owns what must be the same for that, and the joined directory. Shards are not copied where a hard link will do.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilotfish.errors import DataSetError, InvalidInputError
from pilotfish.train.disk import require_room, write_whole
from pilotfish.train.hidden import same_probe
from pilotfish.train.manifest import JOINED, Manifest, ShardEntry, read_manifest
from pilotfish.train.shards import ShardReader, shard_name


def join_data(output: Path, sources: Sequence[Path], origin: Mapping[str, Any] | None = None) -> Manifest:
    """Makes a data set of the finished shards of others, in their order; they stay as they are.

    Conversations keep the numbers that they have in their own set. A prompt that several sets have stays in all of
    them, and on the same side of the split, which its hash decides.

    Args:
        output: directory to make.
        sources: directories of data sets; they may be growing.
        origin: command, commit, versions, for the manifest.

    Raises:
        DataSetError: a set cannot be read, has no shard, or is of another model, other weights, other stored boundaries
            or another held-out share than the first; or the disk is too small.
        InvalidInputError: fewer than two sets, one of them twice, or an output that is there already.
    """
    if len(sources) < 2 or len({source.resolve() for source in sources}) < len(sources):
        raise InvalidInputError(f"{len(sources)} data sets to join; expected two or more, each of them once")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InvalidInputError(f"{output} is there already: name a directory that is not, or an empty one")
    manifests = [read_manifest(source) for source in sources]
    for source, manifest in zip(sources, manifests, strict=True):
        _require_fitting(sources[0], manifests[0], source, manifest)
    output.mkdir(parents=True, exist_ok=True)
    parts = [
        {"directory": source.name, "shards": len(each.shards), "settings": each.settings.as_dict()}
        | {"origin": dict(each.origin)}
        for source, each in zip(sources, manifests, strict=True)
    ]
    whole = Manifest(manifests[0].model, manifests[0].settings, {**(origin or {}), JOINED: parts})
    prompts: set[int] = set()
    for source, manifest in zip(sources, manifests, strict=True):
        for entry in manifest.shards:
            whole = whole.with_shard(_taken(source, entry, output, len(whole.shards), prompts))
    whole.write(output)
    return whole


def _taken(source: Path, entry: ShardEntry, output: Path, number: int, prompts: set[int]) -> ShardEntry:
    """A shard under its new name, with the prompts counted that no shard before it has; adds them."""
    hashes = set(ShardReader(source, entry, verify=False).prompt_hashes.tolist())
    counts = replace(entry.counts, new_prompts=len(hashes - prompts))
    prompts |= hashes
    name = shard_name(number)
    try:
        os.link(source / entry.file, output / name)
    except OSError:  # another disk, or one that knows no links
        require_room(output, float(entry.size), "free some, or join on the disk that has the sets")
        write_whole(output / name, (source / entry.file).read_bytes())
    return replace(entry, file=name, counts=counts)


def _require_fitting(first: Path, ours: Manifest, other: Path, theirs: Manifest) -> None:
    if not theirs.shards:
        raise DataSetError(f"{other} has no finished shard yet: wait for its first, or leave it out")
    compared = [(name, getattr(ours.model, name), getattr(theirs.model, name)) for name in ("fingerprint", "weights")]
    compared += [(name, getattr(ours, name), getattr(theirs, name)) for name in ("boundaries", "held_out_share")]
    for name, expected, found in compared:
        if found != expected:
            raise DataSetError(f"{other}: {name} is {found}, that of {first} is {expected}; sets to join need the same")
    if not same_probe(ours.model.probe, theirs.model.probe):
        raise DataSetError(f"{other} and {first} were made by models with different weights; join sets of one target")
