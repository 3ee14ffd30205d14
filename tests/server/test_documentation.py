"""docs/serving.md: its example runs, and it names every field, flag, metric and code."""

import dataclasses
import re
from pathlib import Path

import pytest

import pilotfish.server
from pilotfish.server.protocol import ChatRequest, CompletionRequest
from pilotfish.server.settings import ServerSettings
from tests.server.running import KEY, MODEL

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
SOURCES = Path(pilotfish.server.__file__).parent


def test_example_runs(server, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for ours, served in (
        ("http://127.0.0.1:8000", server.url),
        ("smollm2-135m-instruct", MODEL),
        ('"none"', repr(KEY)),
    ):
        assert ours in example
        example = example.replace(ours, served)
    names = {}
    exec(example, names)
    names["client"].close()
    assert float(capsys.readouterr().out.splitlines()[-1]) >= 1


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_every_field_is_named(model):
    fields = PAGE[PAGE.index("## Fields") : PAGE.index("## Answers")]
    assert [name for name in model.model_fields if f"`{name}`" not in fields] == []


def test_every_flag_is_named():
    flags = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(ServerSettings)]
    assert [flag for flag in flags if f"`{flag}`" not in PAGE] == []


def test_every_code_is_named():
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', sources))
    assert len(codes) > 10
    assert [code for code in codes - {"client_gone"} if f"`{code}`" not in PAGE] == []


def test_every_metric_is_named(server):
    names = {re.split(r"[{ ]", line)[0].removeprefix("pilotfish:") for line in server.metrics()}
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in names}
    shortened = {name.replace("spec_decode", "...") for name in names}
    told = {name for name in names | shortened if f"`{name}" in PAGE}
    assert {name.replace("...", "spec_decode") for name in told} == names
