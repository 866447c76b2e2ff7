"""perigee inspect, eval and bench: their JSON, and the numbers that are known."""

import re

import pytest
from perigee_cli import MODEL, needs_model, run, run_json

# Cuts Kimi K3.1 Pro's built-in config to 1.0 GB. The first four layers are three of KDA and one of MLA with DSA, the
# first of them dense. The vocabulary keeps its size, since the ids of control tokens stand in the config.
CUT = ",".join(
    [
        "num_hidden_layers=4",
        "num_experts=16",
        "num_experts_per_token=2",
        "hidden_size=256",
        "vision_config.text_hidden_size=256",
        "q_lora_rank=256",
        "num_attention_heads=8",
        "num_key_value_heads=8",
        "linear_attn_config.num_heads=8",
        "intermediate_size=512",
        "moe_intermediate_size=256",
        "routed_expert_hidden_size=128",
    ]
)


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


def check_bench(out):
    assert out["hardware"] and out["commit"] and re.match(r"\d{4}-\d\d-\d\dT", out["date"])
    names = [r["name"] for r in out["rows"]]
    assert {"prefill_tokens_per_s", "decode_tokens_per_s", "read_bandwidth"} <= set(names)
    for row in out["rows"]:
        assert row["value"] > 0 and row["unit"] in ("tokens/s", "GB/s")


@needs_model
def test_bench_latency(tmp_path):
    args = ["--input-len", 32, "--output-len", 8, "--repeats", 1, "--out", tmp_path / "bench.json"]
    check_bench(run_json("bench", "latency", MODEL, *args))
    assert (tmp_path / "bench.json").read_text().startswith("{")


def test_bench_of_a_cut_builtin_config():
    args = ["--input-len", 16, "--output-len", 4, "--repeats", 1]
    check_bench(
        run_json("bench", "latency", "kimi-k3.1-pro", "--load-format", "dummy", "--override-config", CUT, *args)
    )


def test_overrides_name_the_nearest():
    done = run("inspect", "kimi-k3", "--override-config", "num_hiden_layers=4")
    assert done.returncode == 2 and "num_hidden_layers" in done.stderr
