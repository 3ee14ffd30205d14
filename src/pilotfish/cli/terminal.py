"""How streamed text looks on a terminal: accepted draft tokens in colour, the target's own plain."""

import sys
from collections.abc import Iterator

from pilotfish.engine.outputs import CompletionOutput, StreamDelta

_DRAFTED = "\x1b[32m"
_PLAIN = "\x1b[0m"


def print_stream(deltas: Iterator[StreamDelta]) -> CompletionOutput:
    """Prints deltas as they come, and a newline at the end; returns the whole output."""
    coloured = sys.stdout.isatty()
    output = None
    for delta in deltas:
        for piece, drafted in zip(delta.pieces, delta.from_draft, strict=True):
            sys.stdout.write(f"{_DRAFTED}{piece}{_PLAIN}" if coloured and drafted and piece else piece)
        sys.stdout.flush()
        output = delta.output
    sys.stdout.write("\n")
    sys.stdout.flush()
    assert output is not None, "the last delta carries the output"
    return output.outputs[0]


def speed(output: CompletionOutput) -> str:
    """Speed and mean acceptance length of one output, in words."""
    metrics = output.metrics
    rate = metrics.decode_tokens_per_second
    return (
        f"{len(output.token_ids)} tokens, "
        + (f"{rate:.1f} tokens/s, " if rate is not None else "")
        + f"mean acceptance length {metrics.tokens_per_round:.2f}"
    )
