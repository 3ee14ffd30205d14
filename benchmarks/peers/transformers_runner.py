"""`transformers`, eager, float32: prints seconds per pass by rows, and of a prompt, as one JSON object.

python -m benchmarks.peers.transformers_runner DIRECTORY --rows 1,4,8 --context 256 --prompt 512 --threads 2

A pass of several rows is the one its own assisted decoding makes: tokens appended to one sequence, logits for each.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--rows", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(arguments.directory, dtype=torch.float32).eval()

    def tokens(count: int) -> torch.Tensor:
        return torch.tensor([[(index + 1) * 7919 % model.config.vocab_size for index in range(count)]])

    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        model(tokens(arguments.context), past_key_values=cache, use_cache=True, logits_to_keep=1)
        times: dict[str, list[float]] = {count: [] for count in arguments.rows.split(",")}
        for _ in range(6):
            for count, samples in times.items():
                rows = tokens(int(count))
                started = time.perf_counter()
                model(rows, past_key_values=cache, use_cache=True)
                samples.append(time.perf_counter() - started)
                cache.crop(-int(count))
        prompt = []
        for _ in range(3):
            started = time.perf_counter()
            model(tokens(arguments.prompt), use_cache=True, logits_to_keep=1)
            prompt.append(time.perf_counter() - started)
    print(
        json.dumps(
            {
                "passes": {count: statistics.median(samples[1:]) for count, samples in times.items()},
                "prompt_seconds": statistics.median(prompt[1:]),
            }
        )
    )


if __name__ == "__main__":
    main()
