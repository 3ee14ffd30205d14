"""One flag per sampling option, same name; and what several samples and logprobs look like in JSON."""

import dataclasses
import inspect
import json

import pytest
from typer.testing import CliRunner

from pilotfish.cli import app
from pilotfish.cli.generate import generate
from pilotfish.errors import SamplingParamsError
from pilotfish.sampling.params import SamplingParams
from tests.models.tiny_models import tiny_hf_directory

PROMPT = "The shark looks once, and once more the shark looks"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(tiny_hf_directory(tmp_path_factory.mktemp("target")))


def invoke(directory, *arguments):
    return CliRunner().invoke(
        app, ["generate", PROMPT, "--model", directory, "--max-tokens", "6", "--seed", "3", *arguments]
    )


def test_every_sampling_option_has_a_flag_of_its_name():
    parameters = inspect.signature(generate).parameters
    options = {field.name for field in dataclasses.fields(SamplingParams)} - {"logits_processors"}
    assert options <= set(parameters)
    for name in options:
        (flag,) = parameters[name].annotation.__metadata__
        assert f"--{name.replace('_', '-')}" in str(flag.default).split("/")  # typer keeps the first name there


def test_samples_and_logprobs_are_lists(directory):
    result = invoke(
        directory, "--json", "--n", "2", "--logprobs", "1", "--prompt-logprobs", "0", "--logit-bias", '{"70": 100}'
    )
    record = json.loads(result.stdout)
    assert [sample["token_ids"] for sample in record["outputs"]] == [[70] * 6] * 2
    assert record["outputs"][0]["seed"] == 3 != record["outputs"][1]["seed"]
    assert record["usage"]["completion_tokens"] == 12
    assert record["outputs"][0]["logprobs"][0][-1]["token_id"] == 70
    assert record["prompt_logprobs"][0] is None
    assert len(record["prompt_logprobs"]) == record["usage"]["prompt_tokens"]


def test_structured_outputs_come_from_text_or_file(directory, tmp_path):
    form = '{"regex": "[ab]{6}"}'
    (tmp_path / "form.json").write_text(form, encoding="utf-8")
    texts = {
        json.loads(invoke(directory, "--json", "--structured-outputs", source).stdout)["text"]
        for source in (form, f"@{tmp_path / 'form.json'}")
    }
    assert len(texts) == 1
    assert set(texts.pop()) <= {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "2"], "--n 2 needs --json"),
        (["--logprobs", "0"], "--logprobs 0 needs --json"),
        (["--min-p", "1.5"], "min_p is 1.5; expected a number in"),
        (["--logit-bias", "{1"], "--logit-bias: expected a JSON object"),
        (["--structured-outputs", "@absent.json"], "--structured-outputs: cannot read"),
        (["--structured-outputs", "{}"], "exactly one of json, regex, grammar, choice"),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(arguments, message):
    result = invoke("/absent", *arguments)
    assert isinstance(result.exception, SamplingParamsError)
    assert message in str(result.exception)


def test_memory_of_the_cache_is_limited_or_refused_with_the_numbers(directory):
    assert (
        json.loads(invoke(directory, "--json", "--kv-cache-memory", "64MiB").stdout)["usage"]["completion_tokens"] == 6
    )
    refused = invoke(directory, "--kv-cache-memory", "1KiB")
    assert refused.exit_code != 0
    assert "one request of 256 tokens needs" in str(refused.exception)
    shorter = invoke(directory, "--json", "--max-model-len", "40", "--kv-cache-memory", "1MiB")
    assert json.loads(shorter.stdout)["usage"]["completion_tokens"] == 6
