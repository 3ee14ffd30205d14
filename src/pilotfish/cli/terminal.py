"""How streamed text looks on a terminal: accepted draft tokens in colour, the target's own plain."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotfish.engine.outputs import CompletionOutput, StreamDelta

_DRAFTED = "\x1b[32m"
_PLAIN = "\x1b[0m"


def print_stream(deltas: "Iterator[StreamDelta]") -> "CompletionOutput":
    """Prints deltas as they come, and a newline at the end; returns the whole output."""
    output = None
    for delta in deltas:
        print_pieces(delta.pieces, delta.from_draft)
        output = delta.output
    sys.stdout.write("\n")
    sys.stdout.flush()
    assert output is not None, "the last delta carries the output"
    return output.outputs[0]


def print_pieces(pieces: Sequence[str], from_draft: Sequence[bool]) -> None:
    """Prints the text of some tokens at once."""
    coloured = sys.stdout.isatty()
    for piece, drafted in zip(pieces, from_draft, strict=True):
        sys.stdout.write(f"{_DRAFTED}{piece}{_PLAIN}" if coloured and drafted and piece else piece)
    sys.stdout.flush()


def speed(output: "CompletionOutput") -> str:
    """Speed and mean acceptance length of one output, in words."""
    metrics = output.metrics
    return in_words(len(output.token_ids), metrics.decode_tokens_per_second, metrics.tokens_per_round)


def in_words(tokens: int, per_second: float | None, per_round: float | None) -> str:
    """Figures of one answer, those that are known."""
    parts = [f"{tokens} token{'' if tokens == 1 else 's'}"]
    if per_second is not None:
        parts.append(f"{per_second:.1f} tokens/s")
    if per_round is not None:
        parts.append(f"mean acceptance length {per_round:.2f}")
    return ", ".join(parts)
