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


# A cache that holds but a few of the conversations' ends.
TIGHT = ["--conversations", 24, "--turns", 3, "--prefix-len", 64, "--input-len", 128, "--output-len", 4,
         "--max-num-seqs", 2, "--compared", 0]  # fmt: skip


@needs_model
def test_tiers_bring_back_what_the_cache_had_no_room_for(tmp_path):
    tight = [*TIGHT, "--cache-memory", 0.03]
    without = rows(run_json("bench", "throughput", MODEL, *tight))["reusable_tokens_hit"]["value"]
    for tiers in [
        ["--kv-offloading-size", 0.25],
        ["--kv-offloading-file", tmp_path / "rows", "--kv-offloading-file-size", 0.25],
    ]:
        log = tmp_path / "log.jsonl"
        got = rows(run_json("bench", "throughput", MODEL, "--record", log, *tight, *tiers))
        assert got["reusable_tokens_hit"]["value"] > without + 0.1
        assert not (tmp_path / "rows").exists()
        assert run_json("replay", log)["same"]


@needs_model
def test_tiers_that_cannot_be(tmp_path):
    def error(status, *tiers):
        return fails(status, "bench", "throughput", MODEL, *WORK, *tiers)

    assert "--kv-offloading-file" in error(2, "--kv-offloading-file-size", 1)
    assert "how many GiB" in error(2, "--kv-offloading-file", tmp_path / "rows")
    assert "no row of the cache" in error(2, "--kv-offloading-size", 0.000001)
    there = tmp_path / "there"
    there.write_text("mine")
    line = error(1, "--kv-offloading-file", there, "--kv-offloading-file-size", 1)
    assert str(there) in line and there.read_text() == "mine"


@needs_model
def test_logs_that_cannot_be_replayed(tmp_path):
    log = tmp_path / "log.jsonl"
    assert "cannot be read" in fails(1, "replay", log)
    log.write_text("hello\n")
    assert "not the header" in fails(1, "replay", log)
    log.write_text('{"perigee_log":1}\n')
    assert 'no "model"' in fails(1, "replay", log)
    assert "cannot be made" in fails(1, "bench", "throughput", MODEL, "--record", "/nowhere/log", *WORK)
