"""From a draft vocabulary to the target's: logits over some ids become logits over all."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

NOWHERE = -1e30
"""Logit of a token outside the draft vocabulary. Finite, so that a mask that forbids all others leaves a law."""


def in_target_ids(
    logits: Float[Tensor, "row draft_vocab"], target_ids: Int[Tensor, " draft_vocab"], vocab_size: int
) -> Float[Tensor, "row vocab"]:
    """The same logits under the target's ids.

    Args:
        target_ids: for each column the target's token id.
        vocab_size: the target's.
    """
    if len(target_ids) == vocab_size:
        return logits
    wide = torch.full((len(logits), vocab_size), NOWHERE, dtype=logits.dtype, device=logits.device)
    wide[:, target_ids] = logits
    return wide
