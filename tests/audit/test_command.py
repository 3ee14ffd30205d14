"""`pilotfish audit` from the outside: exit codes, seeds, refusals, the endpoint level."""

import json
import sys

import pytest

from pilotfish.cli import main
from tests.audit.command import run_audit
from tests.audit.mock_server import BIASED, mock_server


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--level", "colour"), "colour"),
        (("--fresh", "--seed", "1"), "--fresh"),
        (("--level", "endpoint"), "--base-url"),
        (("--base-url", "nowhere"), "nowhere"),
    ],
)
def test_callers_mistake_is_one_line_and_exit_code_2(arguments, names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pilotfish", "audit", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert names in error
    assert error.count("\n") == 1


def test_fresh_seed_is_printed_and_replays():
    process = run_audit("--level", "noise", "--size", "ci", "--fresh")
    assert process.returncode == 0, process.stderr
    seed = process.stdout.splitlines()[0].removeprefix("seed ")
    again = run_audit("--level", "noise", "--size", "ci", "--seed", seed, "--json")
    assert json.loads(again.stdout)["passed"] is True


def test_biased_server_ends_with_exit_code_1():
    with mock_server(BIASED, salt=1) as url, mock_server(salt=2) as other:
        process = run_audit("--base-url", url, "--reference-url", other, "--json")
    assert process.returncode == 1
    (level,) = json.loads(process.stdout)["levels"]
    assert level["name"] == "endpoint"
    assert "sampled text" in level["findings"][0]
