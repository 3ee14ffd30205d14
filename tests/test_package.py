"""The public names, and what importing them costs."""

import subprocess
import sys

import pilotfish


def test_public_names_are_sorted_complete_and_importable():
    homes = pilotfish._HOMES
    assert set(pilotfish.__all__) == set(homes)
    assert pilotfish.__all__ == sorted(pilotfish.__all__, key=lambda name: (not name.isupper(), name))
    for name in pilotfish.__all__:
        assert getattr(pilotfish, name).__module__ == homes[name]


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, pilotfish.cli; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
