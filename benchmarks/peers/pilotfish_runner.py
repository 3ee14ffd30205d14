"""Ours: prints seconds per pass by rows, and of a prompt, as one JSON object.

python -m benchmarks.peers.pilotfish_runner MODEL --weights int8 --rows 1,4,8 --context 256 --prompt 512 --threads 2
"""

import argparse
import json
import statistics
import time

import pilotfish._native as native
from pilotfish.models.base import Executor, Segment
from pilotfish.models.loading import load_model
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.pass_cost import measure_pass


def prompt_seconds(executor: Executor, tokens: int) -> float:
    """One pass over a whole prompt, logits for its last token only; median of 3 after one that does not count."""
    times = []
    ids = [(index + 1) * 7919 % executor.config.vocab_size for index in range(tokens)]
    for _ in range(4):
        sequence = executor.open(tokens)
        started = time.perf_counter()
        executor.forward([Segment(sequence, ids, logits_from=tokens - 1)])
        times.append(time.perf_counter() - started)
        executor.close(sequence)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--isa", default="auto")
    arguments = parser.parse_args()
    if not native.select_isa(arguments.isa):
        raise SystemExit(f"--isa {arguments.isa}: this machine has {', '.join(native.instruction_sets())}")
    model = load_model(arguments.model, executor="native", weights=arguments.weights, threads=arguments.threads)
    assert isinstance(model.executor, NativeExecutor)
    assert model.executor.storage == arguments.weights, "the file is in the storage it is compared in"
    rows = [int(count) for count in arguments.rows.split(",")]
    costs = measure_pass(model.executor, rows, context=arguments.context, repeats=9)
    print(
        json.dumps(
            {
                "passes": {str(cost.rows): cost.seconds for cost in costs},
                "prompt_seconds": prompt_seconds(model.executor, arguments.prompt),
            }
        )
    )


if __name__ == "__main__":
    main()
