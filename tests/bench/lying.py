"""An executor whose arithmetic depends on what else is in the pass, as ours must not: the known-bad control."""

from dataclasses import replace


def lie_when_verifying(monkeypatch, kind):
    """A pass that verifies a draft, and only such a one, gives the pending token's row another favourite.

    Args:
        kind: the class of executors that shall lie.
    """
    forward = kind.forward

    def lying(self, segments, **options):
        output = forward(self, segments, **options)
        if any(len(segment.tokens) - segment.logits_from > 1 for segment in segments):
            logits = output.logits.clone()
            logits[0] = logits[0].roll(1)
            output = replace(output, logits=logits, maxima=None)
        return output

    monkeypatch.setattr(kind, "forward", lying)
