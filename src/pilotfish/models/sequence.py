"""Bookkeeping of one sequence: committed length, nodes, and which layers have run them.

Owns the rules about rows that the executor's contract (`base.py`) states, as checks that change nothing and changes
that cannot fail. Holds no tensors, so that every executor can share it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pilotfish.errors import CacheFullError, RowsError
from pilotfish.models.base import Segment
from pilotfish.terms import ROOT


class Node(NamedTuple):
    """A row that was run but not committed.

    Attributes:
        parent: an earlier node, or `ROOT` for the committed prefix.
        depth: nodes above it; its position is the committed length + depth.
        layers: how many layers, counted from the first, hold its keys and values.
    """

    parent: int
    depth: int
    layers: int


class SequenceState:
    """Length and nodes of one sequence with room for `capacity` positions, nodes included.

    Node i occupies slot `length + i`; a committed token occupies the slot of its position.
    """

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.capacity = capacity
        self.nodes: list[Node] = []
        # Layers that hold each committed token. Never rising: a node cannot pass through more than those before it.
        self._committed_layers: list[int] = []

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self._committed_layers)

    def check_rows(self, segment: Segment, layers: tuple[int, int]) -> list[Node]:
        """The segment's rows as nodes; to be handed to `place`.

        Raises:
            RowsError: the rows do not continue this sequence, or need keys of layers that were not run.
            CacheFullError: there is no room for them.
        """
        start, stop = layers
        first, count = segment.first_node, len(segment.tokens)
        if count == 0:
            raise self._error("a segment has no tokens; leave the sequence out of the pass instead")
        if not 0 <= first <= len(self.nodes):
            raise self._error(f"first_node is {first}; expected 0 to {len(self.nodes)}, the number of nodes so far")
        if segment.parents is not None and len(segment.parents) != count:
            raise self._error(f"{len(segment.parents)} parents for {count} tokens; give one per token")
        if not 0 <= segment.logits_from <= count:
            raise self._error(f"logits_from is {segment.logits_from}; expected 0 to {count}, the number of rows")
        if self.length + first + count > self.capacity:
            raise CacheFullError(
                f"sequence {self.number}: {self.length} committed tokens, {first} nodes and {count} new rows do not "
                f"fit its capacity of {self.capacity}; send fewer rows or open the sequence with more capacity"
            )
        ready = self._committed_layers[-1] if self._committed_layers else stop
        if ready < stop:
            raise self._error(
                f"layers up to {stop} were asked for, but its committed tokens went through {ready} layers only; "
                "truncate it and run them again through all layers"
            )
        if start > 0 and first + count > len(self.nodes):
            raise self._error(
                f"layers from {start} on were asked for nodes {first} to {first + count - 1}, but only "
                f"{len(self.nodes)} nodes exist; run the rows through the earlier layers first"
            )
        nodes = self.nodes[:first]
        for row in range(count):
            parent = first + row - 1 if segment.parents is None else segment.parents[row]
            nodes.append(self._checked_node(nodes, parent, layers))
        return nodes[first:]

    def _checked_node(self, earlier: list[Node], parent: int, layers: tuple[int, int]) -> Node:
        start, stop = layers
        node = len(earlier)
        if not ROOT <= parent < node:
            raise self._error(
                f"node {node} has parent {parent}; expected an earlier node or {ROOT} for the committed prefix"
            )
        if parent != ROOT and earlier[parent].layers < stop:
            raise self._error(
                f"layers up to {stop} were asked for node {node}, but its parent {parent} went through "
                f"{earlier[parent].layers} layers only; run the parent through them in this pass or before"
            )
        if start > 0:
            before = self.nodes[node]
            if before.parent != parent or before.layers < start:
                raise self._error(
                    f"node {node} is to go on at layer {start} below parent {parent}, but went through {before.layers} "
                    f"layers below parent {before.parent}; run the same rows through layers 0 to {start} first"
                )
        return Node(parent, 0 if parent == ROOT else earlier[parent].depth + 1, stop)

    def place(self, first_node: int, nodes: Sequence[Node]) -> None:
        """Replaces the nodes from `first_node` on."""
        self.nodes[first_node:] = nodes

    def check_path(self, path: Sequence[int]) -> None:
        """Raises `RowsError` unless the nodes lead from the committed prefix downwards."""
        above = ROOT
        for node in path:
            if not 0 <= node < len(self.nodes):
                raise self._error(f"path {list(path)} names node {node}; it has {len(self.nodes)} nodes")
            if self.nodes[node].parent != above:
                raise self._error(
                    f"path {list(path)} goes from {above} to node {node}, whose parent is {self.nodes[node].parent}; "
                    f"give nodes from the committed prefix ({ROOT}) downwards, each the parent of the next"
                )
            above = node

    def keep(self, path: Sequence[int]) -> None:
        """Commits the nodes of a checked path and drops the rest."""
        self._committed_layers.extend(self.nodes[node].layers for node in path)
        self.nodes.clear()

    def append(self, count: int, layers: int) -> None:
        """Commits `count` more positions that are known to be right through `layers` layers; there are no nodes."""
        self._committed_layers.extend([layers] * count)

    def layers_of(self, position: int) -> int:
        """Layers that hold a committed position and all before it."""
        return self._committed_layers[position]

    def check_length(self, length: int) -> None:
        """Raises `RowsError` unless the sequence can be cut to `length`."""
        if not 0 <= length <= self.length:
            raise self._error(f"cannot truncate to {length}; expected 0 to {self.length}, its committed length")

    def truncate(self, length: int) -> None:
        """Drops all nodes and the committed tokens from a checked `length` on."""
        del self._committed_layers[length:]
        self.nodes.clear()

    def _error(self, message: str) -> RowsError:
        return RowsError(f"sequence {self.number}: {message}")
