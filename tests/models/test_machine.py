"""What is said of the machine: control groups' limits from a tree made up here, versions, memory."""

import pytest

from pilotfish.models import machine
from pilotfish.models.machine import Machine, cpu_limit, memory_limit, resident_bytes, versions


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A process in group /service/worker of the tree at the path given."""
    lines = machine._lines
    monkeypatch.setattr(
        machine, "_lines", lambda path: ["0::/service/worker"] if str(path) == "/proc/self/cgroup" else lines(path)
    )
    (tmp_path / "service" / "worker").mkdir(parents=True)
    return tmp_path


def test_limits_are_the_tightest_of_all_groups_above(groups):
    (groups / "service" / "worker" / "cpu.max").write_text("max 100000\n")
    (groups / "service" / "cpu.max").write_text("150000 100000\n")
    (groups / "cpu.max").write_text("800000 100000\n")
    (groups / "service" / "memory.max").write_text("max\n")
    (groups / "service" / "worker" / "memory.max").write_text("1000000\n")
    assert cpu_limit(groups) == 1.5
    assert memory_limit(groups) == 1_000_000


def test_limits_are_none_where_there_are_none(groups):
    assert cpu_limit(groups) is None
    assert memory_limit(groups) is None
    (groups / "cpu.max").write_text("max 100000\n")
    (groups / "memory.max").write_text("max\n")
    assert cpu_limit(groups) is None
    assert memory_limit(groups) is None


def test_machine_is_described():
    here = Machine.here()
    assert here.processor
    assert 1 <= here.usable_processors <= here.processors
    assert 0 < resident_bytes() < here.memory_bytes


def test_versions_name_what_is_installed_and_what_is_not(monkeypatch):
    found = versions()
    assert {"python", "pilotfish", "torch", "transformers"} <= set(found)
    assert all(found.values())
    monkeypatch.setattr(machine, "PACKAGES", ("pilotfish-absent",))
    assert versions()["pilotfish-absent"] is None
