"""A loaded model holds its packed weights and its cache, and nothing of the file it came from."""

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, sys
import torch
from transformers import PreTrainedTokenizerFast
from pilotfish.models.base import Segment
from pilotfish.models.loading import load_model

def anonymous_bytes():  # mapped files are left out: the system takes their pages back when it wants them
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

torch.set_num_threads(1)
before = anonymous_bytes()
model = load_model("smollm2-135m-instruct", executor="native", weights=sys.argv[1], threads=1)
executor = model.executor
sequence = executor.open(256)
executor.forward([Segment(sequence, [5] * 255, logits_from=255)])
executor.keep(sequence, range(255))
executor.forward([Segment(sequence, [7])])
print(json.dumps({
    "grown": anonymous_bytes() - before,
    "weights": executor.weight_bytes,
    "cache": (executor.total_pages - executor.free_pages) * executor.page_bytes,
}))
"""
ALLOWANCE = 100_000_000  # tokenizer, modules imported by the load, what the allocator keeps


@pytest.mark.demo_model
@pytest.mark.parametrize("weights", ["auto", "bfloat16"])
def test_loaded_model_holds_packed_weights_and_cache_only(weights):
    # Keeping the tensors that were packed would add 168 MB (auto) or 538 MB (bfloat16).
    result = subprocess.run([sys.executable, "-c", MEASURE, weights], capture_output=True, text=True, check=True)
    memory = json.loads(result.stdout)
    assert memory["cache"] > 0
    assert memory["grown"] > memory["weights"], "the packed weights are there"
    assert memory["grown"] < 1.25 * memory["weights"] + memory["cache"] + ALLOWANCE
