"""Kills a training at random moments, again and again, and compares it with one that nobody touched.

    python benchmarks/kill_training.py DATA OUTPUT [--kills 10] [--seed 0] -- head --model MODEL --steps 60 ...

What follows `--` is given to `pilotfish train KIND DATA OUTPUT`. The first run goes through; the second is ended with
SIGKILL at moments spread over its steps and gone on with by `--resume`. Losses step by step, held-out measurements and
the written weights must be the same, to the last bit.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VOLATILE = ("seconds", "tokens_per_second")


def main() -> None:
    own, _, told = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(own.split())
    kind, *flags = told.split()
    whole, killed = given.output / "whole", given.output / "killed"
    if _start(kind, given.data, whole, flags).wait():
        sys.exit("the undisturbed run failed")
    # Costs are measured at the beginning and decide what is projected, so the second run is told the first one's.
    killed.mkdir(parents=True)
    (killed / "checkpoints").mkdir()
    (killed / "run.json").write_bytes((whole / "run.json").read_bytes())
    steps = len(_losses(whole))
    dice = random.Random(given.seed)
    done = 0
    while True:
        process = _start(kind, given.data, killed, [*flags, "--resume"])
        made, left = len(_losses(killed)), given.kills - done
        reached = made + dice.randint(0, max(0, 2 * (steps - made) // (left + 1) - 1))
        while process.poll() is None and (done == given.kills or len(_losses(killed)) < reached):
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
        print(f"kill {done} after step {len(_losses(killed))} of {steps}", flush=True)
    if process.returncode:
        sys.exit("the disturbed run failed")
    same = {
        "loss curve": _records(whole) == _records(killed),
        "weights": (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes(),
    }
    print(json.dumps({"kills": done, "steps": steps, **same}))
    sys.exit(0 if all(same.values()) and done else 1)


def _start(kind: str, data: Path, output: Path, flags: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pilotfish.cli", "train", kind, str(data), str(output), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _losses(path: Path) -> list[dict[str, Any]]:
    return [record for record in _records(path) if "loss" in record]


def _records(path: Path) -> list[dict[str, Any]]:
    """The log without what a clock decides."""
    log = path / "log.jsonl"
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:  # cut off by the kill
            break
        found.append({name: value for name, value in record.items() if name not in VOLATILE})
    return found


if __name__ == "__main__":
    main()
