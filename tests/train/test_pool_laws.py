"""The likeliest next tokens of kept states: the same from PyTorch and from the executor's own matrix."""

import numpy as np
import pytest
import torch

from pilotfish.models.files import resolve
from pilotfish.train.pool_laws import TopOfLaws
from tests.train.tiny_data import HIDDEN, VOCAB, planted_target


@pytest.mark.parametrize("storage", ["bfloat16-compute", "bfloat16", "float32", "int8", None])
def test_the_laws_top_is_that_of_the_whole_law(storage, tmp_path):
    files = resolve(str(planted_target(tmp_path)))
    laws = TopOfLaws(files.config, files.weights, 5, storage)
    hidden = torch.randn(300, HIDDEN, generator=torch.Generator().manual_seed(1)).half()
    ids, probs = laws(hidden)
    with torch.no_grad():
        states = hidden.float() * torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + 1e-5)
        whole = (states @ files.weights.read("lm_head.weight").float().T).softmax(-1)
    assert whole.shape[1] == VOCAB
    best = whole.topk(5)
    close = 0.02 if storage is not None and storage.startswith("bfloat16") else 1e-4
    assert np.allclose(probs, best.values.numpy(), atol=close)
    assert np.mean(ids[:, 0] == best.indices[:, 0].numpy()) > 0.95
