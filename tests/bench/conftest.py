import pytest

from pilotfish.engine.llm import LLM
from tests.models.tiny_models import tiny_hf_directory


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def llm(tiny_directory):
    return LLM(tiny_directory, threads=1)
