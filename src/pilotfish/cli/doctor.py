"""`pilotfish doctor`: what Pilotfish would run on here, and with what limits."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish.cli import options


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    threads: options.Threads = None,
) -> None:
    """Show the executor that would be chosen and why, the machine's measured limits, versions and caches."""
    from dataclasses import asdict

    from pilotfish.models.machine import Machine, versions

    facts: dict[str, Any] = {
        "executor": _executor(threads),
        "machine": asdict(Machine.here()),
        "devices": _devices(),
        "versions": versions(),
        "caches": _caches(),
        "demo_model": _demo_model(),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        _print(facts)


def _executor(threads: int | None) -> dict[str, Any]:
    """What `--executor auto` takes on the CPU, and what the native extension sees and reaches."""
    from pilotfish.errors import ExecutorUnavailableError, InvalidInputError
    from pilotfish.models.native_executor import native_module
    from pilotfish.models.roofline import MachineLimits

    if threads is not None and threads < 1:
        raise InvalidInputError(f"threads={threads}: expected at least 1")
    found: dict[str, Any] = {
        "choice": "native",
        "reason": "the native extension loads",
        "instruction_set": None,
        "instruction_sets": [],
        "cpu_features": [],
        "threads": threads,
        "bandwidth_bytes_per_second": None,
        "peak_flops": None,
        "bfloat16_peak_flops": None,
    }
    try:
        native = native_module()
    except ExecutorUnavailableError as error:
        import torch

        return {**found, "choice": "torch", "reason": str(error), "threads": threads or torch.get_num_threads()}
    count = threads or native.available_cores()
    limits = MachineLimits.measure(count)
    return {
        **found,
        "instruction_set": native.isa(),
        "instruction_sets": native.instruction_sets(),
        "cpu_features": native.cpu_features(),
        "threads": count,
        "bandwidth_bytes_per_second": limits.bandwidth_bytes_per_second,
        "peak_flops": limits.peak_flops,
        "bfloat16_peak_flops": native.measure_flops(count, pairs=True),
    }


def _devices() -> list[str]:
    """What PyTorch can compute on, CUDA devices with their names."""
    import torch

    from pilotfish.models.devices import available_devices

    return [
        f"{name} ({torch.cuda.get_device_name(name)})" if name.startswith("cuda") else name
        for name in available_devices()
    ]


def _caches() -> list[dict[str, Any]]:
    from huggingface_hub import constants

    from pilotfish.models.cache import cache_dir

    paths = {
        "models": cache_dir() / "models",
        "tokenizers": cache_dir() / "tokenizers",
        "checksums": cache_dir() / "checksums",
        "pass times": cache_dir() / "pass_times",
        "suffix pools": cache_dir() / "pools",
        "hugging face hub": Path(constants.HF_HUB_CACHE),
    }
    return [{"name": name, "path": str(path), "bytes": _size(path)} for name, path in paths.items()]


def _size(path: Path) -> int:
    """Bytes of the files below a directory, each counted once; the hub's snapshots are links to its blobs."""
    total = 0
    for file in path.rglob("*"):
        try:
            if file.is_file() and not file.is_symlink():
                total += file.stat().st_size
        except OSError:  # it went away meanwhile, or is not ours to look at
            continue
    return total


def _demo_model() -> dict[str, Any]:
    from pilotfish.models.catalogue import find

    entry = find(options.DEMO_MODEL)
    return {"name": entry.name, "cached": entry.is_cached(), "path": str(entry.path)}


def _print(facts: dict[str, Any]) -> None:
    executor, machine, demo = facts["executor"], facts["machine"], facts["demo_model"]
    lines = [
        ("executor", f"{executor['choice']}: {executor['reason']}"),
        ("instructions", executor["instruction_set"] or "unknown without the native extension"),
        ("usable", ", ".join(executor["instruction_sets"])),
        ("CPU features", ", ".join(executor["cpu_features"])),
        ("threads", str(executor["threads"])),
        ("bandwidth", _rate(executor["bandwidth_bytes_per_second"], 1e9, "GB/s")),
        ("multiply-add peak", _rate(executor["peak_flops"], 1e9, "GFLOP/s")),
        ("of bfloat16", _rate(executor["bfloat16_peak_flops"], 1e9, "GFLOP/s")),
        ("processor", f"{machine['processor']}, {machine['usable_processors']} of {machine['processors']} usable"),
        ("CPU limit", "none" if machine["cpu_limit"] is None else f"{machine['cpu_limit']:g} processors"),
        ("memory", f"{machine['memory_bytes'] / 1e9:.1f} GB"),
        (
            "memory limit",
            "none" if machine["memory_limit_bytes"] is None else f"{machine['memory_limit_bytes'] / 1e9:.1f} GB",
        ),
        ("system", machine["system"]),
        ("devices", ", ".join(facts["devices"])),
        *((name, version or "not installed") for name, version in facts["versions"].items()),
        *((f"{cache['name']} cache", f"{_bytes(cache['bytes'])} in {cache['path']}") for cache in facts["caches"]),
        (
            "demo model",
            f"{demo['name']} in {demo['path']}"
            if demo["cached"]
            else f"not cached; run `pilotfish models pull {demo['name']}`",
        ),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        if value:
            print(f"{name:<{width}}  {value}")


def _bytes(count: int) -> str:
    """Small caches are of a few kilobytes."""
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _rate(value: float | None, unit: float, name: str) -> str:
    return "not measured" if value is None else f"{value / unit:.1f} {name}"
