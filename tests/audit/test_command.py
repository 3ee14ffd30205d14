"""`pilotfish audit` from the outside: exit codes, seeds, refusals, the endpoint level."""

import json
import sys

import pytest

from pilotfish.cli import main
from tests.audit.command import run_audit
from tests.audit.mock_server import BIASED, mock_server

SERVER = ("--base-url", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--level", "colour"), "colour"),
        (("--size", "huge"), "huge"),
        (("--fresh", "--seed", "1"), "--fresh"),
        (("--seed", "-1"), "--seed"),
        (("--level", "endpoint"), "--base-url"),
        (("--base-url", ""), "base URL"),
        (("--base-url", "nowhere"), "nowhere"),
        (("--repeat", "0", "--self-test"), "--repeat"),
        (("--workers", "0"), "--workers"),
        (("--level", "noise", "--html", "no/such/folder/page.html"), "--html"),
        # What would be ignored is refused.
        (("--self-test", "--size", "ci"), "--size"),
        (("--self-test", "--model", "none"), "--model"),
        (("--self-test", "--html", "page.html"), "--html"),
        (("--self-test", "--workers", "2"), "--workers"),
        (("--self-test", "--level", "endpoint"), "endpoint"),
        (("--self-test", *SERVER), "--base-url"),
        (("--repeat", "2"), "--repeat"),
        (("--level", "noise", "--workers", "2"), "--workers"),
        (("--level", "law", "--model", "none"), "--model"),
        (("--level", "identity", "--model", "none", "--executor", "torch"), "--executor"),
        (("--level", "identity", "--model", "none", "--threads", "1"), "--threads"),
        (("--level", "noise", "--prompt", "x"), "--prompt"),
        (("--level", "noise", "--tokens", "5"), "--tokens"),
        (("--level", "noise", "--reference-url", "http://x/v1"), "--reference-url"),
        (("--level", "noise", *SERVER), "--base-url"),
        (("--level", "noise", "--level", "endpoint", *SERVER), "--level"),
        ((*SERVER, "--size", "ci"), "--size"),
        ((*SERVER, "--workers", "2"), "--workers"),
        ((*SERVER, "--reference-url", "http://x/v1", "--model", "none"), "--model"),
        ((*SERVER, "--reference-url", "http://x/v1", "--weights", "int8"), "--weights"),
        ((*SERVER, "--api-key-env", "NO_SUCH_VARIABLE_HERE"), "NO_SUCH_VARIABLE_HERE"),
        ((*SERVER, "--tokens", "0"), "tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_callers_mistake_is_one_line_and_exit_code_2(arguments, names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pilotfish", "audit", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert names in printed.err
    assert printed.err.count("\n") == 1


def test_page_that_can_be_written_is_left_alone_until_it_is(tmp_path, monkeypatch):
    page, old = tmp_path / "new.html", tmp_path / "old.html"
    old.write_text("before")
    for path in (page, old):
        monkeypatch.setattr(sys, "argv", ["pilotfish", "audit", "--html", str(path), "--level", "colour"])
        with pytest.raises(SystemExit):
            main()
    assert not page.exists()
    assert old.read_text() == "before"


def test_fresh_seed_is_printed_and_replays():
    process = run_audit("--level", "noise", "--size", "ci", "--fresh")
    assert process.returncode == 0, process.stderr
    seed = process.stdout.splitlines()[0].removeprefix("seed ")
    again = run_audit("--level", "noise", "--size", "ci", "--seed", seed, "--json")
    assert json.loads(again.stdout)["passed"] is True


def test_self_test_of_one_level_shows_its_controls_alone():
    process = run_audit("--self-test", "--level", "noise", "--repeat", "2", "--json")
    assert process.returncode == 0, process.stderr
    (row,) = json.loads(process.stdout)["controls"]
    assert (row["level"], row["caught"], row["runs"]) == ("noise", 2, 2)


def test_biased_server_ends_with_exit_code_1():
    with mock_server(BIASED, salt=1) as url, mock_server(salt=2) as other:
        process = run_audit("--base-url", url, "--reference-url", other, "--json")
    assert process.returncode == 1
    (level,) = json.loads(process.stdout)["levels"]
    assert level["name"] == "endpoint"
    assert "sampled text" in level["findings"][0]
