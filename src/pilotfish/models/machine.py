"""The machine and the software that figures were measured on.

Owns what the operating system says of processor, memory and limits, and the versions of installed packages. Measures
nothing and loads nothing heavy.
"""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("pilotfish", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "numpy")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this process runs.

    Attributes:
        processor: its name, as the system gives it.
        processors: logical ones of the machine.
        usable_processors: those this process may be scheduled on.
        cpu_limit: processors' worth of time a control group allows, `None` without such a limit.
        memory_bytes: of the machine.
        memory_limit_bytes: what a control group allows, `None` without such a limit.
        system: kernel and architecture.
    """

    processor: str
    processors: int
    usable_processors: int
    cpu_limit: float | None
    memory_bytes: int
    memory_limit_bytes: int | None
    system: str

    @classmethod
    def here(cls) -> "Machine":
        """This machine."""
        return cls(
            processor=_processor_name(),
            processors=os.cpu_count() or 1,
            usable_processors=len(os.sched_getaffinity(0)),
            cpu_limit=cpu_limit(),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            memory_limit_bytes=memory_limit(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
        )


def versions() -> dict[str, str | None]:
    """Python's version and those of the packages we stand on; `None` for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def resident_bytes() -> int:
    """Physical memory this process holds now; pages of mapped files count while they are in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def available_bytes(root: Path = CGROUPS) -> int:
    """Memory this process can take now without others' being swapped out, within its control groups' limits."""
    page = os.sysconf("SC_PAGE_SIZE")
    available = os.sysconf("SC_PHYS_PAGES") * page // 2  # where the system does not say
    for line in _lines(Path("/proc/meminfo")):
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            available = int(value.split()[0]) * 1024
    limit = memory_limit(root)
    return available if limit is None else max(min(available, limit - resident_bytes()), 0)


def cpu_limit(root: Path = CGROUPS) -> float | None:
    """Processors' worth of time that this process's control groups, version 2, allow; `None` without a limit."""
    shares = []
    for group in _groups(root):
        quota, _, period = _first_line(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def memory_limit(root: Path = CGROUPS) -> int | None:
    """Bytes that this process's control groups, version 2, allow; `None` without a limit."""
    limits = [_first_line(group / "memory.max") for group in _groups(root)]
    return min((int(limit) for limit in limits if limit.isdigit()), default=None)


def _groups(root: Path) -> list[Path]:
    """This process's group and those above it, all of whose limits hold."""
    for line in _lines(Path("/proc/self/cgroup")):
        if line.startswith("0::"):
            own = root / line.removeprefix("0::").strip().lstrip("/")
            return [group for group in (own, *own.parents) if group == root or root in group.parents]
    return [root]


def _processor_name() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not on this system
        return []
