"""`load_model`'s options: honoured, or refused by name before anything is read."""

import pytest
import torch

from pilotfish.errors import InvalidInputError
from pilotfish.models import devices
from pilotfish.models.base import Segment
from pilotfish.models.devices import available_devices, require_device
from pilotfish.models.loading import load_model
from pilotfish.models.roofline import executor_facts
from tests.models.tiny_models import tiny_hf_directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("model"))


def test_threads_of_the_torch_executor_are_pytorchs_during_a_pass_and_no_longer(directory, monkeypatch):
    before = torch.get_num_threads()
    wanted = before + 1
    executor = load_model(directory, executor="torch", threads=wanted).executor
    seen = []
    run = executor.decoder.run

    def watched(*args, **options):
        seen.append(torch.get_num_threads())
        return run(*args, **options)

    monkeypatch.setattr(executor.decoder, "run", watched)
    sequence = executor.open(4)
    executor.forward([Segment(sequence, [1, 2])])
    assert seen == [wanted]
    assert executor.threads == executor_facts(executor).threads == wanted
    assert torch.get_num_threads() == before
    monkeypatch.setattr(executor.decoder, "run", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        executor.forward([Segment(sequence, [1, 2])])
    assert torch.get_num_threads() == before, "whatever happens in the pass"


def test_torch_executor_without_threads_has_pytorchs(directory):
    assert load_model(directory, executor="torch").executor.threads == torch.get_num_threads()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device='gpu': expected one of cpu"),
        ({"device": "cuda:77"}, "device='cuda:77': expected one of cpu"),
        ({"device": "meta", "executor": "torch"}, "device='meta': expected one of cpu"),
        ({"device": ""}, "device='': expected one of cpu"),
        ({"threads": 0}, "threads=0: expected at least 1"),
        ({"executor": "torch", "weights": "int8"}, "weights='int8' needs the native executor"),
    ],
)
def test_option_that_cannot_be_honoured_is_refused_before_the_model_is_looked_for(options, message):
    with pytest.raises(InvalidInputError, match=message):
        load_model("no such model", **options)


def test_options_that_contradict_each_other_are_refused(monkeypatch):
    monkeypatch.setattr(devices, "available_devices", lambda: ["cpu", "cuda:0", "cuda:1"])
    for name in ("cpu", "cuda", "cuda:1"):
        require_device(name)
    with pytest.raises(InvalidInputError, match="device='mps': expected one of cpu, cuda:0, cuda:1"):
        require_device("mps")
    with pytest.raises(InvalidInputError, match="executor='native' runs on the CPU, got device='cuda'"):
        load_model("no such model", executor="native", device="cuda")
    with pytest.raises(InvalidInputError, match="threads=2 are of the CPU, got device='cuda:1'"):
        load_model("no such model", threads=2, device="cuda:1")


def test_cpu_is_always_there():
    assert available_devices()[0] == "cpu"
