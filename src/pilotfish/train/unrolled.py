"""Attention in training-time test: each unrolled step sees the target's prefix and its own earlier steps only.

Owns which keys a row sees. At step 0 a row sees all rows of its conversation up to its own, as a decoder does. The same
row at step k stands k tokens further on: it sees what step 0 wrote up to the row (features of the target), and of steps
1 to k what they wrote at this very row (features of its own making). That is exactly what a head's cache holds when it
drafts. After EAGLE-3 (https://arxiv.org/abs/2503.01840), section 3.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import Attention


class UnrolledAttention(Attention):
    """What the rows of an unrolled pass attend to.

    Args:
        config: of the layers.
        lengths: rows of each conversation.
    """

    def __init__(self, config: DecoderConfig, lengths: Sequence[int]) -> None:
        self._config = config
        self._lengths = tuple(lengths)
        self._rows: Int[Tensor, " row"] | None = None
        self._counts: list[int] = []
        self._first: dict[int, tuple[Tensor, Tensor]] = {}
        self._later: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def advance(self, rows: Int[Tensor, " row"], kept: Int[Tensor, " row"]) -> None:
        """The next step runs these rows, which are among those of the step before.

        Args:
            rows: in the pack, rising.
            kept: their places among the rows of the step before.
        """
        if self._rows is not None:
            self._later = {
                layer: [(key[kept], value[kept]) for key, value in steps] for layer, steps in self._later.items()
            }
        self._rows = rows
        bounds = torch.tensor([0, *self._lengths], device=rows.device).cumsum(0)
        places = torch.searchsorted(rows, bounds)
        self._counts = places.diff().tolist()

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "row head head_dim"],
        key: Float[Tensor, "row kv_head head_dim"],
        value: Float[Tensor, "row kv_head head_dim"],
    ) -> Float[Tensor, "row head head_dim"]:
        group = self._config.num_heads // self._config.num_kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        if self._rows is None:
            self._first[layer] = (key, value)
            return self._causal(query, key, value)
        steps = self._later.setdefault(layer, [])
        steps.append((key, value))
        return self._ahead(query, *self._first[layer], steps, self._rows)

    def _causal(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outputs = []
        start = 0
        for length in self._lengths:
            rows = slice(start, start + length)
            own_query, own_key, own_value = (x[rows].transpose(0, 1)[None] for x in (query, key, value))
            scale = self._config.query_scale
            context = F.scaled_dot_product_attention(own_query, own_key, own_value, is_causal=True, scale=scale)
            outputs.append(context[0].transpose(0, 1))
            start += length
        return torch.cat(outputs)

    def _ahead(
        self,
        query: Tensor,
        first_keys: Tensor,
        first_values: Tensor,
        steps: list[tuple[Tensor, Tensor]],
        rows: Tensor,
    ) -> Tensor:
        query = query * self._config.query_scale
        own_scores = torch.stack([(query * key).sum(-1) for key, _ in steps], dim=-1)
        outputs = []
        row = start = 0
        for length, count in zip(self._lengths, self._counts, strict=True):
            if count:
                part = slice(row, row + count)
                keys, values = first_keys[start : start + length], first_values[start : start + length]
                places = rows[part] - start
                hidden = torch.arange(length, device=rows.device)[None] > places[:, None]
                scores = torch.einsum("rhd,shd->hrs", query[part], keys).masked_fill(hidden, -torch.inf)
                both = torch.cat((scores, own_scores[part].transpose(0, 1)), dim=-1).float().softmax(-1)
                probs = both.to(values.dtype)
                context = torch.einsum("hrs,shd->rhd", probs[..., :length], values)
                for place, (_, own) in enumerate(steps):
                    context = context + probs[..., length + place].T[..., None] * own[part]
                outputs.append(context)
            row, start = row + count, start + length
        return torch.cat(outputs)
