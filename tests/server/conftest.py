"""One server for all tests of the room: tiny model, real sockets, a thread of this process."""

import pytest

from pilotfish import LLM
from pilotfish.server.settings import ServerSettings
from tests.models.tiny_models import tiny_hf_directory
from tests.server.running import KEY, MODEL, RunningServer

# Long enough for streams that can be watched, interrupted and refused; drafts often, and some are rejected.
CONTEXT = 2048
SPECULATION = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3, "num_speculative_tokens": 4}


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("served"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def alone(directory):
    """The same model without speculation and without load: what every answer is compared with."""
    return LLM(directory, speculative_config=None, threads=1)


@pytest.fixture(scope="session")
def server(directory):
    settings = ServerSettings(port=0, api_key=KEY, served_model_name=MODEL, max_waiting=64, max_n=8)
    with RunningServer(LLM(directory, speculative_config=SPECULATION, threads=1), settings) as running:
        yield running


@pytest.fixture
def client(server):
    with server.openai() as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_is_left(request):
    """After every test the engine is idle: nobody's slot is stuck, whatever the test did."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").require_idle()
