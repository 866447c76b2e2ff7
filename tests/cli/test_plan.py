"""perigee plan: the known bytes, what fits, and what is refused."""

import pytest
from perigee_cli import fails, run, run_json

K31 = "kimi-k3.1-pro"


@pytest.mark.parametrize(
    "model, latent, index, want",
    [
        ("kimi-k3", "fp8", "fp8", 13824),
        (K31, "fp8", "fp8", 16992),
        (K31, "nvfp4", "fp8", 11616),
        (K31, "nvfp4", "mxfp4", 10080),
        ("kimi-linear-48b-a3b", "bf16", "fp8", 7 * 1152),
    ],
)
def test_bytes_per_token(model, latent, index, want):
    flags = ["--kv-cache-dtype", latent, "--index-cache-dtype", index]
    for tp in (1, 8, 32):
        out = run_json("plan", model, "--tensor-parallel-size", tp, *flags)
        assert out["bytes_per_token"] == want
        assert out["row_bytes"] == want * out["block_tokens"]
        assert out["tokens"] is None and out["full_contexts"] is None
    out = run_json("plan", model, "--tensor-parallel-size", 8, "--decode-context-parallel-size", 8, *flags)
    assert out["bytes_per_token"] == want / 8


def test_what_fits_adds_up():
    flags = ["--tensor-parallel-size", 8, "--kv-cache-dtype", "fp8", "--gpu-memory", 288, "--max-num-seqs", 4]
    out = run_json("plan", K31, *flags)
    assert out["block_tokens"] == 256 and out["state_rows"] == 14
    assert abs(out["row_waste"] - 0.078) < 0.0005
    assert out["cache_bytes"] == int(288e9 * 0.9) - out["weights_bytes"]
    assert out["rows"] == (out["cache_bytes"] - 4 * out["slot_bytes"]) // out["row_bytes"]
    assert out["tokens"] == (out["rows"] - 4 * 14) * 256
    assert out["context"] == 1 << 20
    assert out["full_contexts"] == out["cache_bytes"] // ((4096 + 14) * out["row_bytes"] + out["slot_bytes"])
    assert out["why"] and all(isinstance(line, str) for line in out["why"])
    chosen = min((b for b in out["blocks"] if b["fits"]), key=lambda b: b["expected_waste_bytes"])
    assert chosen["block_tokens"] == 256
    shared = run_json("plan", K31, *flags, "--decode-context-parallel-size", 8)
    assert shared["full_contexts"] > 6 * out["full_contexts"]


def test_text_names_the_chosen_block():
    done = run("plan", K31, "--tensor-parallel-size", 8, "--kv-cache-dtype", "fp8")
    assert done.returncode == 0
    chosen = [line for line in done.stdout.splitlines() if line.endswith("chosen")]
    assert len(chosen) == 1 and chosen[0].split()[0] == "256"


def test_refuses_with_numbers():
    line = fails(2, "plan", K31, "--tensor-parallel-size", 1, "--gpu-memory", 141)
    assert "126.9 GB" in line and "--tensor-parallel-size" in line
    line = fails(2, "plan", K31, "--override-config", "linear_attn_config.num_heads=12", "--tensor-parallel-size", 8)
    assert "12 KDA" in line and "1, 2, 4" in line
    line = fails(2, "plan", K31, "--decode-context-parallel-size", 2)
    assert "--decode-context-parallel-size 2" in line
    line = fails(2, "plan", K31, "--block-size", 64)
    assert "64 tokens" in line and "6512640" in line
    assert "--gpu-memory" in fails(2, "plan", K31, "--gpu-memory", "-3")
