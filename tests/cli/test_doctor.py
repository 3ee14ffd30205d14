"""`pilotfish doctor`: what it finds, with and without the native extension."""

import json
import subprocess
import sys

from pilotfish import _native
from tests.cli.test_cli import pilotfish

WITHOUT_NATIVE = "import sys; sys.modules['pilotfish._native'] = None; sys.argv[0] = 'pilotfish'; "


def test_doctor_json_describes_executor_machine_versions_and_caches(tmp_path):
    (tmp_path / "models" / "some").mkdir(parents=True)
    (tmp_path / "models" / "some" / "file").write_bytes(b"x" * 1234)
    (tmp_path / "pass_times").mkdir()
    (tmp_path / "pass_times" / "key.json").write_bytes(b"x" * 100)
    (tmp_path / "pools" / "model").mkdir(parents=True)
    (tmp_path / "pools" / "model" / "team.pool").write_bytes(b"x" * 2000)
    (tmp_path / "models" / "link").symlink_to(tmp_path / "models" / "some" / "file")
    result = pilotfish("doctor", "--json", "--threads", "1", PILOTFISH_CACHE=str(tmp_path), HF_HOME=str(tmp_path / "h"))
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert set(facts) == {"executor", "machine", "devices", "versions", "caches", "demo_model"}
    executor = facts["executor"]
    assert executor["choice"] == "native"
    assert executor["threads"] == 1
    assert executor["instruction_set"] == _native.isa()
    assert executor["instruction_set"] in executor["instruction_sets"]
    assert executor["cpu_features"] == _native.cpu_features()
    assert executor["bandwidth_bytes_per_second"] > 1e8
    assert executor["peak_flops"] > 1e8
    assert executor["bfloat16_peak_flops"] > 1e7
    assert {"python", "pilotfish", "torch", "transformers"} <= set(facts["versions"])
    assert facts["devices"][0] == "cpu"
    caches = {cache["name"]: cache for cache in facts["caches"]}
    assert caches["models"] == {"name": "models", "path": str(tmp_path / "models"), "bytes": 1234}
    assert caches["pass times"] == {"name": "pass times", "path": str(tmp_path / "pass_times"), "bytes": 100}
    assert caches["suffix pools"] == {"name": "suffix pools", "path": str(tmp_path / "pools"), "bytes": 2000}
    assert caches["hugging face hub"]["bytes"] == 0
    assert facts["demo_model"]["cached"] is False


def test_doctor_prints_the_same_for_people(tmp_path):
    (tmp_path / "pools").mkdir()
    (tmp_path / "pools" / "team.pool").write_bytes(b"x" * 2000)
    result = pilotfish("doctor", PILOTFISH_CACHE=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert f"2.0 kB in {tmp_path / 'pools'}" in result.stdout
    for text in ("native: the native extension loads", "GB/s", "GFLOP/s", "transformers", "models pull"):
        assert text in result.stdout


def test_doctor_says_why_the_torch_executor_would_be_chosen():
    code = WITHOUT_NATIVE + "from pilotfish.cli import main; main()"
    for flags in (["--json", "--threads", "2"], []):
        result = subprocess.run(
            [sys.executable, "-c", code, "doctor", *flags], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert "the native executor is not available" in result.stdout
        if flags:
            executor = json.loads(result.stdout)["executor"]
            assert (executor["choice"], executor["threads"], executor["peak_flops"]) == ("torch", 2, None)
        else:
            assert "not measured" in result.stdout


def test_doctor_refuses_no_threads():
    result = pilotfish("doctor", "--threads", "0")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "threads=0" in result.stderr
