"""perigee bench throughput and replay: reuse by the numbers, and event logs that give the same bits."""

import json

import pytest
from perigee_cli import MODEL, fails, needs_model, run, run_json

WORK = ["--conversations", 3, "--turns", 2, "--prefix-len", 96, "--input-len", 8, "--output-len", 4]


def rows(out):
    return {r["name"]: r for r in out["rows"]}


@needs_model
@pytest.mark.parametrize("workload", ["random", "prefix", "agent"])
def test_workloads(workload):
    out = run_json("bench", "throughput", MODEL, "--workload", workload, "--compared", 2, *WORK)
    got = rows(out)
    assert {"output_tokens_per_s", "prompt_tokens_per_s", "speedup_over_no_cache", "step_ms_p50",
            "engine_overhead_us_p50", "occupancy"} <= got.keys()  # fmt: skip
    assert all(r["value"] > 0 for r in got.values())
    if workload == "random":
        assert "reusable_tokens_hit" not in got and got["prompt_tokens_per_s"]["cached_tokens"] == 0
    else:
        assert 0.5 < got["reusable_tokens_hit"]["value"] <= 1


@needs_model
def test_nothing_is_reused_when_it_must_not_be():
    got = rows(run_json("bench", "throughput", MODEL, "--no-enable-prefix-caching", *WORK))
    assert got["reusable_tokens_hit"]["value"] == 0 and "speedup_over_no_cache" not in got


@needs_model
def test_replay(tmp_path):
    log = tmp_path / "log.jsonl"
    run_json("bench", "throughput", MODEL, "--compared", 0, "--record", log, *WORK)
    for flags in [[], ["--threads", 1]]:
        out = run_json("replay", log, *flags)
        assert out["same"] and not out["cut"] and out["requests"] == 6 and out["steps"] > 6

    lines = log.read_text().splitlines(keepends=True)
    for part in ["".join(lines)[:-5], "".join(lines[:5])]:
        log.write_text(part)
        assert run_json("replay", log)["cut"]

    step = next(i for i, line in enumerate(lines) if '"step":3' in line)
    changed = json.loads(lines[step])
    changed["logits"] = "0" * 16
    log.write_text("".join(lines[:step]) + json.dumps(changed, separators=(",", ":")) + "\n")
    done = run("replay", log)
    assert done.returncode == 1 and "not the same" in done.stderr and "0000000000000000" in done.stderr


@needs_model
def test_logs_that_cannot_be_replayed(tmp_path):
    log = tmp_path / "log.jsonl"
    assert "cannot be read" in fails(1, "replay", log)
    log.write_text("hello\n")
    assert "not the header" in fails(1, "replay", log)
    log.write_text('{"perigee_log":1}\n')
    assert 'no "model"' in fails(1, "replay", log)
    assert "cannot be made" in fails(1, "bench", "throughput", MODEL, "--record", "/nowhere/log", *WORK)
