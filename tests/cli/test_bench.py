"""perigee bench: the shape of its JSON, and what of it does not depend on time."""

import importlib.machinery
import importlib.util
import json
import re

import pytest
from perigee_cli import MODEL, ROOT, fails, needs_model, run, run_json

SMALL = "tests/data/configs/k31-small.json"
CONFIGS = sorted((ROOT / "bench/configs").glob("*.json"))

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


ROW_FIELDS = {"name", "value", "unit", "limit", "limit_by", "peer", "peer_value"}


def check_report(out, settings):
    assert out["hardware"] and out["commit"] and re.match(r"\d{4}-\d\d-\d\dT", out["date"])
    assert re.fullmatch("[0-9a-f]{16}", out["numerics"])
    assert out["kernels"] in ("plain", "avx2", "avx512")
    assert out["load_average"] >= 0
    assert settings.items() <= out["settings"].items()
    rows = {r["name"]: r for r in out["rows"]}
    assert len(rows) == len(out["rows"])
    for row in out["rows"]:
        assert ROW_FIELDS <= set(row)
        assert row["value"] > 0 and row["unit"] in ("tokens/s", "GB/s", "GFLOP/s")
        assert (row["limit"] is None) == (row["limit_by"] is None)
        assert (row["peer"] is None) == (row["peer_value"] is None)
        assert row["limit_by"] in (None, "read_bandwidth", "dpbf16_rate")
    assert rows["read_bandwidth"]["unit"] == "GB/s" and rows["read_bandwidth"]["limit"] is None
    assert rows["dpbf16_rate"]["unit"] == "GFLOP/s" and rows["dpbf16_rate"]["instruction"]
    return rows


def latency(*args):
    return run_json("bench", "latency", *args)


def check_latency(out, **settings):
    rows = check_report(out, settings)
    for phase in ("prefill_tokens_per_s", "decode_tokens_per_s"):
        row = rows[phase]
        assert row["unit"] == "tokens/s" and row["limit"] > 0
        assert row["min"] <= row["value"] <= row["max"] and row["runs"] == settings["repeats"]
        assert row["read_bytes_per_step"] > 0 and row["flop_per_token"] > 0
        assert row["min_share"] <= row["value"] / row["limit"] <= row["max_share"]
    return rows


@needs_model
def test_latency_writes_what_it_prints(tmp_path):
    file = tmp_path / "bench.json"
    sizes = ["--input-len", 32, "--output-len", 8, "--repeats", 3]
    out = latency(MODEL, *sizes, "--out", file)
    check_latency(out, input_len=32, output_len=8, repeats=3, batch_size=1, depth=0)
    assert out["model"] == MODEL
    assert json.loads(file.read_text()) == out


def test_latency_of_a_cut_builtin_config():
    sizes = ["--input-len", 16, "--output-len", 4, "--repeats", 1]
    out = latency("kimi-k3.1-pro", "--load-format", "dummy", "--override-config", CUT, *sizes)
    check_latency(out, input_len=16, output_len=4, repeats=1)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_any_cut_runs(layers):
    """The first three layers are KDA: without the fourth no layer has attention."""
    dummy = ["--load-format", "dummy", "--override-config", f"num_hidden_layers={layers}"]
    generated = run_json("generate", SMALL, *dummy, "--prompt", "abc" * 30, "--max-tokens", 4)
    assert generated["usage"]["completion_tokens"] == 4
    out = latency(SMALL, *dummy, "--input-len", 16, "--output-len", 2, "--repeats", 1)
    assert out["numerics"] == generated["numerics"]
    planned = run_json("plan", SMALL, *dummy[2:])
    assert (planned["bytes_per_token"] > 0) == (layers == 4)


def test_latency_stages():
    """Six KDA layers and two with DSA, the first layer without experts: each stage as often as a step calls it."""
    sizes = ["--input-len", 16, "--output-len", 4, "--repeats", 1]
    out = latency("bench/configs/k31-220m.json", "--load-format", "dummy", *sizes, "--stages")
    rows = {r["name"]: r for r in out["rows"] if r["unit"] == "us"}
    calls = {"kda_chunk": 6, "index_select": 2, "sparse_attend": 2, "moe_experts": 7, "lm_head": 1}
    for phase in ("prefill", "decode"):
        for stage, count in calls.items():
            row = rows[f"{phase} {stage}"]
            assert row["calls_per_step"] == count and row["value"] > 0 and row["limit"] >= 0
        assert f"{phase} between stages" in rows and f"{phase} dense_attend" not in rows
    assert rows["decode sample"]["calls_per_step"] == 1 and "prefill sample" not in rows
    plain = latency("bench/configs/k31-220m.json", "--load-format", "dummy", *sizes)
    assert not [r for r in plain["rows"] if r["unit"] == "us"]


def bytes_per_step(*args):
    out = latency(SMALL, "--load-format", "dummy", "--input-len", 16, "--output-len", 4, "--repeats", 1, *args)
    row = next(r for r in out["rows"] if r["name"] == "decode_tokens_per_s")
    return row["read_bytes_per_step"]


def test_latency_limit_counts_depth():
    """Two DSA layers of top 64: 1,024 more tokens of context are 1,024 more index keys, and no more latents."""
    near, far = bytes_per_step("--depth", 1024), bytes_per_step("--depth", 2048)
    assert far - near == 2 * 1024 * 132
    assert bytes_per_step("--depth", 1024, "--index-cache-dtype", "mxfp4") - near == pytest.approx(
        -2 * (1024 + 16 + 1.5) * 64
    )
    assert bytes_per_step("--depth", 1024, "--kv-cache-dtype", "fp8") - near == -2 * 64 * 576


def test_latency_limit_counts_the_experts_of_a_batch():
    """A batch reads the experts of all its rows, at most all 16 of 4 a row, in each of 4 layers."""
    expert = 3 * 256 * 128 * 17 // 32
    one, eight = bytes_per_step(), bytes_per_step("--batch-size", 8)
    caches = 7 * (3 * (8 * 65536 + 9 * 1024 * 2 + 7.5 * (1024 * 10 + 8 * 64)) + 2 * 17.5 * (132 + 1152))
    experts = (eight - one - caches) / (4 * expert)
    assert 4 <= experts <= 12, experts


@pytest.mark.parametrize("folder", [False, True])
def test_a_bare_config_is_enough(tmp_path, folder):
    config = ROOT / SMALL
    where = config
    if folder:
        (tmp_path / "config.json").write_text(config.read_text())
        where = tmp_path
    inspected = run_json("inspect", where, "--load-format", "dummy")
    generated = run_json("generate", where, "--load-format", "dummy", "--prompt", "abc", "--max-tokens", 3)
    assert inspected["numerics"]["digest"] == generated["numerics"]
    assert generated["usage"] == {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 3}
    assert len(generated["token_ids"]) == 3 and generated["text"] == ""
    out = latency(where, "--load-format", "dummy", "--input-len", 4, "--output-len", 2, "--repeats", 1)
    assert out["numerics"] == generated["numerics"]


def test_without_a_tokenizer_there_is_no_text():
    done = run("generate", SMALL, "--load-format", "dummy", "--prompt", "abc", "--stop", "x")
    assert done.returncode == 2 and "no tokenizer" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "name, parameters, layers",
    [("k3-220m", 219_569_424, "KKKMKKKM"), ("kimi-linear-204m", 203_801_616, "KKKMKKKM"), ("k31-220m", 223_043_344, "KKKSKKKS")],
)
def test_bench_configs(name, parameters, layers):
    """219.6 M and 203.8 M: the shapes of the CPU peer table; k31-220m is k3-220m with an indexer on its MLA layers."""
    assert f"{name}.json" in [c.name for c in CONFIGS] and len(CONFIGS) == 3
    out = run_json("inspect", f"bench/configs/{name}.json")
    assert out["parameters"] == parameters and out["layers"] == layers
    indexer = 2 * (32 * 128 * 384 + 128 * 1024 + 32 * 1024 + 2 * 128)
    assert parameters - (indexer if "S" in layers else 0) in (219_569_424, 203_801_616)


STAGES = {
    "attn_res_mix", "dense_attend", "glu_mlp", "index_front", "index_select", "kda_chunk", "kda_output", "kda_project",
    "lm_head", "mla_output", "mla_project", "mla_query", "moe_combine", "moe_experts", "moe_route", "sparse_attend",
}  # fmt: skip


def kernels(*args):
    sizes = ["--batch-size", 3, "--prefill-rows", 20, "--context", 256, "--seconds", 0]
    return run_json("bench", "kernels", *args, *sizes)


@pytest.mark.parametrize("backend", ["plain", "auto"])
def test_kernels(backend):
    out = kernels(SMALL, "--device", "cpu", "--cpu-kernels", backend)
    rows = check_report(out, {"batch_size": 3, "prefill_rows": 20, "context": 256})
    stages = [r for r in rows.values() if r["limit"] is not None]
    assert {r["name"].split()[0] for r in stages} == STAGES
    for row in stages:
        assert row["microseconds"] > 0 and row["calls"] == 1
        assert row["limit"] == pytest.approx(rows[row["limit_by"]]["value"])
        work = row["read_bytes"] if row["unit"] == "GB/s" else row["flops"]
        assert row["value"] == pytest.approx(work / row["microseconds"] / 1e3)
        assert row["peer"] == (None if out["kernels"] == "plain" else "plain")
    assert rows["kda_project rows=3"]["read_bytes"] == rows["kda_project rows=1"]["read_bytes"]
    assert rows["kda_project rows=20"]["flops"] == 20 * rows["kda_project rows=1"]["flops"]
    assert rows["index_select rows=1 context=256 top_k=64"]["read_bytes"] == 256 * 132
    assert rows["sparse_attend rows=1 context=256 top_k=64"]["read_bytes"] == 64 * 1152


def test_kernels_of_the_standard_shapes_are_those_of_the_config():
    named = kernels("bench/configs/k31-220m.json", "--stage", "attn_res_mix")
    standard = kernels("--stage", "attn_res_mix")
    assert standard["numerics"] == named["numerics"]
    assert [r["name"] for r in standard["rows"]] == [r["name"] for r in named["rows"]]


def test_kernels_without_an_indexer_or_attn_res():
    rows = kernels("tests/data/configs/kimi-linear-small.json")["rows"]
    stages = {r["name"].split()[0] for r in rows} - {"read_bandwidth", "dpbf16_rate"}
    assert stages == STAGES - {"attn_res_mix", "index_front", "index_select", "moe_combine", "sparse_attend"}


def test_bad_flags():
    line = fails(2, "bench", "latency", SMALL, "--load-format", "dummy", "--depth", 1000)
    assert "--depth 1000" in line and "992" in line and "1008" in line
    assert "--depth" in fails(2, "bench", "latency", SMALL, "--load-format", "dummy", "--depth", -16)
    assert "--batch-size" in fails(2, "bench", "latency", SMALL, "--load-format", "dummy", "--batch-size", 0)
    line = fails(2, "bench", "latency", SMALL)
    assert SMALL in line and "--load-format dummy" in line
    assert "--context 1000" in fails(2, "bench", "kernels", "--context", 1000)
    assert "--peer" in fails(2, "bench", "kernels", "--peer", "fast")
    assert "needs a MODEL" in fails(2, "bench", "kernels", "--override-config", "num_experts=4")
    assert "did you mean --prefill-rows?" in fails(2, "bench", "kernels", "--prefil-rows", 8)


def test_a_context_longer_than_the_model_is_refused():
    args = ["--load-format", "dummy", "--override-config", "max_position_embeddings=64", "--depth", 64]
    line = fails(2, "bench", "latency", SMALL, *args)
    assert "--depth 64" in line and "holds 64" in line


def test_stages():
    line = fails(2, "bench", "kernels", SMALL, "--stage", "softmax")
    assert "softmax" in line and all(stage in line for stage in STAGES)
    done = run("bench", "kernels", "tests/data/configs/kimi-linear-small.json", "--stage", "index_select")
    assert done.returncode == 2 and "no such stage" in done.stderr.splitlines()[-1]


def load_run_cpu():
    loader = importlib.machinery.SourceFileLoader("run_cpu", str(ROOT / "bench/run_cpu"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_cpu", loader))
    loader.exec_module(module)
    return module


def test_run_cpu_rows(tmp_path):
    """bench/run_cpu on reports with known numbers: targets, quotients, peers, the best ceiling."""
    run_cpu = load_run_cpu()

    def report(decode, input_len=512, bandwidth=20.0):
        values = {"prefill_tokens_per_s": 300.0, "decode_tokens_per_s": decode}
        rows = [{"name": n, "value": v, "unit": "tokens/s", "limit": 400.0, "peer": None} for n, v in values.items()]
        rows.append({"name": "read_bandwidth", "value": bandwidth, "unit": "GB/s", "limit": None})
        rows.append({"name": "dpbf16_rate", "value": 100.0, "unit": "GFLOP/s", "limit": None})
        common = {"hardware": "h", "commit": "c", "date": "d", "kernels": "plain", "load_average": 0.1}
        return common | {"settings": {"input_len": input_len}, "rows": rows}

    reports = {"k3-220m": report(50.0), "k3-220m batch=16": report(300.0, 16, 22.0)}
    rows = {r["name"]: r for r in run_cpu.latency_rows(reports)}
    assert set(rows) == {
        "k3-220m prefill_tokens_per_s",
        "k3-220m decode_tokens_per_s",
        "k3-220m batch=16 decode_tokens_per_s",
        "decode batch 16 over 1, k3-220m",
        "read_bandwidth",
        "dpbf16_rate",
    }
    assert rows["k3-220m prefill_tokens_per_s"]["target"] == 300
    assert rows["k3-220m decode_tokens_per_s"]["target"] == 360
    assert rows["k3-220m decode_tokens_per_s"]["peer_value"] == 102
    assert rows["k3-220m batch=16 decode_tokens_per_s"]["peer"] is None
    assert rows["decode batch 16 over 1, k3-220m"]["value"] == 6
    assert rows["read_bandwidth"]["value"] == 22
    file = tmp_path / "result.json"
    run_cpu.write(file, run_cpu.result(reports, list(rows.values())))
    written = json.loads(file.read_text())
    assert written["rows"] == list(rows.values()) and written["hardware"] == "h"
    for row in written["rows"]:
        assert list(row)[:8] == ["name", "value", "unit", "limit", "limit_by", "target", "peer", "peer_value"]


def test_run_cpu_names_what_exists():
    run_cpu = load_run_cpu()
    names = [name for name, _, _ in run_cpu.RUNS]
    assert {model for _, model, _ in run_cpu.RUNS} == {c.stem for c in CONFIGS}
    assert all(run in names and base in names for _, run, base, _ in run_cpu.QUOTIENTS)
    assert all(row.rsplit(" ", 1)[0] in names for row in run_cpu.PEER_VALUES)


@pytest.mark.parametrize("command", [["latency", SMALL, "--load-format", "dummy", "--repeats", 1000], ["kernels", "--seconds", 60]])
@pytest.mark.parametrize("name", ["missing/out.json", "."])
def test_out_is_checked_before_anything_is_measured(tmp_path, command, name):
    """The runs asked for would take hours."""
    line = fails(2, "bench", *command, "--out", tmp_path / name, timeout=30)
    assert "--out" in line and str(tmp_path / name) in line
    assert list(tmp_path.iterdir()) == []


def test_a_failed_bench_leaves_the_old_file(tmp_path):
    out = tmp_path / "out.json"
    out.write_text("old")
    fails(2, "bench", "kernels", SMALL, "--stage", "index_select", "--context", 130, "--out", out)
    fails(1, "bench", "kernels", "kimi-linear-48b-a3b", "--override-config", "num_hidden_layers=0", "--out", out)
    assert out.read_text() == "old"


def test_a_full_disk_is_named():
    command = ["bench", "kernels", SMALL, "--stage", "attn_res_mix", "--seconds", 0, "--peer", "none"]
    assert "No space left" in fails(2, *command, "--context", 128, "--out", "/dev/full")
