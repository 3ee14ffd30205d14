"""The trainer: every kind learns a planted pattern, and a run is a function of its options alone."""

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pilotfish.errors import DataSetError, InvalidInputError, TrainingError
from pilotfish.train.checkpoint import RunDirectory
from tests.train.tiny_data import planted_target, write_data
from tests.train.tiny_training import SHORT, draft, exit_adapter, head, spoiled, train

ROOT = Path(__file__).parents[2]


def curve(path):
    """The losses of a run, step by step."""
    return [(record["step"], record["loss"]) for record in RunDirectory(path).records() if "loss" in record]


def measured(path):
    return [record["held_out"] for record in RunDirectory(path).records() if "held_out" in record]


@pytest.mark.parametrize(
    ("make", "options", "bar"),
    [
        (head, {"steps": 150, "learning_rate": 1e-2}, 0.5),
        (spoiled(draft, "mlp", 0.5), {"steps": 100, "learning_rate": 1e-2}, 0.7),
        (spoiled(exit_adapter, "up", 3.0), {"steps": 80, "learning_rate": 2e-2}, 0.7),
    ],
    ids=["head", "draft", "exit"],
)
def test_training_learns_the_planted_pattern(world, tmp_path, make, options, bar):
    outcome = train(world, tmp_path / "run", make, evaluate_every=50, **options, session={"check_prompts": 6})
    found = measured(tmp_path / "run")
    assert found[0]["agreement"][0] < 0.4, "it did not know the pattern before"
    assert outcome.measurement.acceptance.agreement[0] > bar
    assert outcome.measurement.acceptance.sampled[0] > found[0]["sampled"][0] + 0.2
    assert outcome.check.answers_identical
    assert outcome.check.states_identical
    assert outcome.check.tokens_per_round > 1 + 0.5 * bar, "the engine accepts what the trainer measured"
    assert outcome.check.tokens_per_round == pytest.approx(outcome.check.projected_tokens_per_round, rel=0.25)


def test_warm_up_is_cross_entropy_and_then_the_chosen_loss_falls(world, tmp_path):
    train(world, tmp_path / "run", loss="tv", steps=40, loss_warmup=0.5, evaluate_every=40)
    records = [record for record in RunDirectory(tmp_path / "run").records() if "loss" in record]
    assert [record["loss_kind"] for record in records] == ["ce"] * 20 + ["tv"] * 20
    losses = [record["loss"] for record in records]
    assert losses[19] < losses[0]
    assert losses[-1] < losses[20]
    assert all(0 <= loss <= 1 for loss in losses[20:])


def program(world, output, resume, options, **environment):
    command = [sys.executable, "-m", "tests.train.tiny_training", str(world.target), str(world.data), str(output)]
    told = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen([*command, resume, json.dumps(options)], cwd=ROOT, env=told)


def test_killed_training_goes_on_as_if_nothing_had_happened(world, tmp_path):
    options = {"steps": 40, "checkpoint_every": 7, "evaluate_every": 10}
    train(world, tmp_path / "whole", **options)
    killed = program(world, tmp_path / "killed", "begin", options)
    log = tmp_path / "killed" / "log.jsonl"
    moment = random.randrange(2, 36)
    while killed.poll() is None and (not log.exists() or log.read_text().count("\n") < moment):
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    done = len(curve(tmp_path / "killed"))
    assert 0 < done < 40, "it was killed on the way"
    train(world, tmp_path / "killed", session={"resume": True}, **options)
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")
    one, other = RunDirectory(tmp_path / "killed").best(), RunDirectory(tmp_path / "whole").best()
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert (tmp_path / "killed" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_two_processes_have_the_loss_of_one(world, tmp_path):
    options = {"steps": 6, "evaluate_every": 6, "checkpoint_every": 6}
    train(world, tmp_path / "one", **options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    processes = [
        program(world, tmp_path / "two", "begin", options, **shared, RANK=rank, LOCAL_RANK=rank) for rank in "01"
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert RunDirectory(tmp_path / "two").told()["processes"] == 2
    for (_, one), (_, two) in zip(curve(tmp_path / "one"), curve(tmp_path / "two"), strict=True):
        assert two == pytest.approx(one, rel=1e-4)


def test_patience_ends_on_projected_speedup_and_keeps_the_best(world, tmp_path):
    outcome = train(
        world, tmp_path / "run", steps=200, learning_rate=1e-9, evaluate_every=2, patience=3, checkpoint_every=50
    )
    assert outcome.ended == "patience"
    assert outcome.steps < 20
    found = measured(tmp_path / "run")
    assert outcome.best_step == 2 * max(range(len(found)), key=lambda place: found[place]["projected_speedup"])


def test_time_limit_ends_cleanly_and_more_time_goes_on(world, tmp_path):
    first = train(world, tmp_path / "run", minutes=1e-9)
    assert (first.ended, first.steps) == ("minutes", 1)
    second = train(world, tmp_path / "run", session={"resume": True})
    assert (second.ended, second.steps) == ("steps", SHORT["steps"])


def test_run_is_not_overwritten_and_other_options_are_not_mixed_in(world, tmp_path):
    train(world, tmp_path / "run", steps=3)
    with pytest.raises(TrainingError, match="holds a run already: --resume"):
        train(world, tmp_path / "run", steps=3)
    with pytest.raises(TrainingError, match=r"other options \(learning_rate\)"):
        train(world, tmp_path / "run", steps=3, learning_rate=1e-4, session={"resume": True})
    with pytest.raises(TrainingError, match="begun with kind 'head', this is 'draft'"):
        train(world, tmp_path / "run", draft, steps=3, session={"resume": True})


def test_full_disk_stops_cleanly_and_finished_checkpoints_are_kept(world, tmp_path, monkeypatch):
    train(world, tmp_path / "whole", checkpoint_every=3)
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(list((tmp_path / "run" / "checkpoints").glob("step-*.pt"))) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataSetError, match=r"no space left for .*make room and give the same command again"):
        train(world, tmp_path / "run", checkpoint_every=3)
    assert calls
    monkeypatch.undo()
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-00000003.pt", "step-00000006.pt"]
    train(world, tmp_path / "run", session={"resume": True}, checkpoint_every=3)
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


def test_damaged_checkpoint_is_named(world, tmp_path):
    train(world, tmp_path / "run", steps=3)
    (tmp_path / "run" / "checkpoints" / "step-00000003.pt").write_bytes(b"nothing")
    with pytest.raises(TrainingError, match=r"step-00000003.pt cannot be read.*remove it"):
        train(world, tmp_path / "run", steps=3, session={"resume": True})


def test_data_of_another_model_is_refused(world, tmp_path):
    other = planted_target(tmp_path / "other", seed=1)
    values = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**values, "rms_norm_eps": 2e-6}))
    with pytest.raises(DataSetError, match="a drafter learns from its own target's text"):
        train(world, tmp_path / "run", session={"model": str(other)})


def test_data_without_the_layers_or_without_text_is_refused(world, tmp_path):
    with pytest.raises(InvalidInputError, match="expected 0 to 4"):
        train(world, tmp_path / "run", lambda files, ids: head(files, ids, boundaries=(1, 2, 9)))
    unheld = write_data(tmp_path / "data", world.target, world.texts[:8], held_out_share=0.0)
    with pytest.raises(DataSetError, match="no conversation in its held_out split"):
        train(world, tmp_path / "run", session={"data": unheld})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataSetError, match="manifest"):
        train(world, tmp_path / "run", session={"data": tmp_path / "empty"})
    assert not (tmp_path / "run").exists()


def test_states_that_are_not_stored_are_computed_and_give_the_same_curve(world, tmp_path):
    bare = write_data(tmp_path / "bare", world.target, world.texts, boundaries=())
    train(world, tmp_path / "stored", exit_adapter, steps=4)
    train(world, tmp_path / "computed", exit_adapter, steps=4, session={"data": bare})
    assert curve(tmp_path / "computed") == curve(tmp_path / "stored")


def test_vocabulary_of_another_size_and_shares_of_packs_are_refused(world, tmp_path):
    with pytest.raises(InvalidInputError, match="a draft vocabulary of 0"):
        train(world, tmp_path / "run", session={"draft_vocab_size": 0})
    with pytest.raises(InvalidInputError, match="loss is 'mse'; expected one of ce, tv, nla, lk"):
        train(world, tmp_path / "run", loss="mse")
    with pytest.raises(InvalidInputError, match="layers"):
        train(world, tmp_path / "run", lambda files, ids: head(files, ids, layers=2, layout="sglang"))


def test_states_that_the_engine_does_not_give_fail_the_check(world, tmp_path, monkeypatch):
    from pilotfish.train import finish

    real = finish.compute_states
    monkeypatch.setattr(finish, "compute_states", lambda *given: {b: states + 1 for b, states in real(*given).items()})
    with pytest.raises(TrainingError, match="hidden states differ from those of the data"):
        train(world, tmp_path / "run", steps=2, session={"check_prompts": 2})
    assert not (tmp_path / "run" / "drafter.json").exists()
