"""`pilotfish bench`: JSON, table, mistakes."""

import dataclasses
import json
from importlib import import_module

import pytest

from pilotfish.bench.step import ROWS, StepPass, StepReport
from pilotfish.cli import main
from tests.cli.test_cli import pilotfish
from tests.models.tiny_models import tiny_hf_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(tiny_hf_directory(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def module():
    return import_module("pilotfish.cli.bench")  # as an attribute of the package the name is the command


def command(directory, *arguments):
    return ["bench", "step", "--model", directory, "--threads", "1", "--repeats", "2", *arguments]


@pytest.mark.parametrize(("executor", "weights"), [("native", "int8"), ("torch", "float32")])
def test_step_json_has_exactly_the_documented_fields(directory, executor, weights):
    flags = ["--json", "--executor", executor, "--weights", weights, "--rows", "1,3,16", "--context", "20"]
    result = pilotfish(*command(directory, *flags))
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == [
        "weights",
        "context",
        "threads",
        "bandwidth_bytes_per_second",
        "peak_flops",
        "passes",
        "outside_native_share",
    ]
    assert (report["weights"], report["context"], report["threads"]) == (weights, 20, 1)
    assert report["bandwidth_bytes_per_second"] > 0
    assert report["peak_flops"] > 0
    assert [each["rows"] for each in report["passes"]] == [1, 3, 16]
    for each in report["passes"]:
        assert list(each) == ["rows", "seconds", "roofline_seconds", "row_cost"]
        assert each["seconds"] > 0
        assert each["roofline_seconds"] > 0
        assert (each["row_cost"] is None) == (each["rows"] == 1)
    if executor == "native":
        assert 0 <= report["outside_native_share"] < 1
    else:
        assert report["outside_native_share"] is None


def test_step_prints_a_table(directory):
    result = pilotfish(*command(directory, "--rows", "1,4", "--context", "0"))
    assert result.returncode == 0, result.stderr
    for heading in ("rows", "row cost", "t / t(1)", "roofline ms", "outside native code", "GB/s"):
        assert heading in result.stdout


def test_step_measures_all_rows_of_the_report_by_default(module):
    assert tuple(int(part) for part in module.DEFAULT_ROWS.split(",")) == ROWS
    assert ROWS == (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "1,x"], "--rows '1,x': expected whole numbers"),
        (["--rows", "2,4"], "rows=2,4: expected 1 among them"),
        (["--rows", "0,1"], "rows holds 0"),
        (["--context", "250"], "the model has 256"),
        (["--context", "-1"], "context=-1"),
        (["--rows", "1", "--repeats", "0"], "repeats=0"),
        (["--executor", "torch", "--weights", "int8"], "needs the native executor"),
        (["--threads", "0"], "threads=0"),
        (["--model", "absent"], "no model 'absent'"),
    ],
)
def test_step_mistake_is_one_line_and_exit_code_2(directory, arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pilotfish", *command(directory, *arguments)])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("pilotfish: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_step_table_does_without_a_roofline(module, capsys):
    one = StepPass(1, 0.002, None, None)
    report = StepReport("float32", 8, 2, None, None, (one, StepPass(3, 0.004, None, 0.5)), None)
    module._print(report)
    printed = capsys.readouterr().out
    assert "no roofline" in printed
    assert "0.500" in printed
    assert "2.00" in printed
    assert report.as_dict()["passes"][0] == dataclasses.asdict(one)
