"""Requests generated from the served schema, valid and broken ones: no answer is our own mistake."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode as Mode

from pilotfish import LLM
from pilotfish.server.protocol import CompletionRequest
from pilotfish.server.settings import ServerSettings
from tests.models.tiny_models import tiny_hf_directory
from tests.server.running import RunningServer

# Hypothesis takes random numbers that the server's threads draw meanwhile for some that a strategy drew.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

EXAMPLES = 60
OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A context so short that no request takes long."""
    directory = tiny_hf_directory(tmp_path_factory.mktemp("small"), max_position_embeddings=64)
    with RunningServer(LLM(directory, threads=1), ServerSettings(port=0)) as running:
        yield running
        running.require_idle()


@pytest.fixture(scope="module")
def schema(small):
    return schemathesis.openapi.from_dict(small.get("/openapi.json", key=None).json())


def test_every_operation_is_fuzzed(schema):
    found = {(each.ok().method.upper(), each.ok().path) for each in schema.get_all_operations()}
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*each, Mode.POSITIVE) for each in OPERATIONS]
    + [(*each, Mode.NEGATIVE) for each in OPERATIONS if each[0] == "POST"],
)
def test_generated_requests_find_no_mistake_of_ours(small, schema, method, path, mode):
    operation = schema[path][method]
    statuses = set()

    @settings(
        max_examples=EXAMPLES if method == "POST" else 10,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        response = case.call(base_url=small.url, timeout=30)
        statuses.add(response.status_code)
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        kind = response.headers["content-type"][0]
        if response.status_code != 200:
            found = response.json()["error"]
            assert found["message"], case.as_curl_command()
        elif kind == "application/json":
            case.validate_response(response)

    send()
    if mode is Mode.NEGATIVE:
        assert max(statuses) >= 400
    elif path != "/v1/models/{model}":
        assert 200 in statuses


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.lists(st.integers(-1, 400), max_size=4),
    st.dictionaries(
        st.sampled_from(["type", "json", "regex", "grammar", "choice", "1", "report"]), st.text(max_size=9)
    ),
)


@settings(max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@hypothesis.seed(1)
def test_any_value_in_any_field_is_answered(small, data):
    fields = sorted(CompletionRequest.model_fields)
    chosen = data.draw(st.dictionaries(st.sampled_from(fields), VALUES, max_size=4))
    response = small.post("/v1/completions", {"prompt": "x", "max_tokens": 3, **chosen}, key=None)
    assert response.status_code in (200, 400, 404), (chosen, response.text)
