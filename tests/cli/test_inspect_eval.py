"""perigee inspect and eval: their JSON, and the numbers that are known."""

import re

import pytest
from perigee_cli import MODEL, needs_model, run, run_json


@pytest.mark.parametrize("name, tensors", [("kimi-k3.1-pro", 497340), ("kimi-k3", 497220)])
def test_inspect_counts(name, tensors):
    out = run_json("inspect", name)
    assert out["tensors"] == tensors
    assert 2.75e12 <= out["parameters"] <= 2.82e12
    assert abs(out["active_parameters"] / 104e9 - 1) < 0.01
    assert out["bytes"]["total"] == sum(v for k, v in out["bytes"].items() if k != "total")
    assert out["architecture"]
    assert re.fullmatch("[0-9a-f]{16}", out["numerics"]["digest"])


@needs_model
def test_inspect_and_generate_agree_on_the_identity():
    generated = run_json("generate", MODEL, "--prompt", "x", "--max-tokens", 1)
    assert run_json("inspect", MODEL)["numerics"]["digest"] == generated["numerics"]


@needs_model
def test_eval_scores():
    out = run_json("eval", MODEL, "arithmetic", "tools", "json", "--limit", 8)
    assert out["model"] == MODEL
    assert [s["name"] for s in out["suites"]] == ["arithmetic", "tools", "json"]
    for suite in out["suites"]:
        assert suite["n"] == 8
        assert suite["accuracy"] >= 0.95, suite


@needs_model
def test_eval_control_fails():
    out = run_json("eval", MODEL, "arithmetic", "json", "--limit", 8, "--control", "swap")
    assert all(s["accuracy"] < 0.3 for s in out["suites"]), out


def test_overrides_name_the_nearest():
    done = run("inspect", "kimi-k3", "--override-config", "num_hiden_layers=4")
    assert done.returncode == 2 and "num_hidden_layers" in done.stderr
