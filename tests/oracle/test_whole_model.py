"""The engine's whole forward pass against the fp64 oracle, on seeded checkpoints of the three families.

Contexts are several times the top-k (64), the KDA chunk (16), the page (64) and the segment of dense attention (96 here).
The oracle is given the engine's selected keys and experts; the bound on the logits is the error of an eager bf16 PyTorch run
with the same selections.
"""

import subprocess

import numpy as np
import pytest
import whole_model
from oracle_paths import GOLDEN_SEED, ROOT, tool
from oracle import config as configs, model, seeded, tensor_file
from oracle.checkpoint import Checkpoint

FAMILIES = ["kimi-linear", "kimi-k3", "k31"]
CONFIGS = ROOT / "tests/data/configs"
SEGMENT = 96


@pytest.mark.parametrize(("seed", "count", "lanes"), [(1, 320, 1), (1, 320, 8), (2, 650, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_engine(family, seed, count, lanes, trace_model, tmp_path, record_property):
    folder = seeded.make(CONFIGS / f"{family}-small.json", tmp_path / "model", seed)
    tokens = seeded.tokens(seed, count, configs.load(folder).vocab)
    trace = trace_model(folder, tokens, tmp_path / "trace.safetensors", "--lanes", str(lanes), "--dense-segment", str(SEGMENT))
    numbers = whole_model.report(folder, tokens, trace)
    for name, value in numbers.items():
        print(f"{name}: {value}")
    for name in ("error", "bound"):
        record_property(name, numbers[name])
    record_property("greedy compared", numbers["greedy"].compared)
    assert whole_model.failures(numbers) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_with_a_perturbed_weight_is_caught(family, trace_model, tmp_path):
    """One projection off by 5 % in the engine's file: the error leaves the bound."""
    config_file = CONFIGS / f"{family}-small.json"
    folder, wrong = (seeded.make(config_file, tmp_path / name, 1) for name in ("model", "wrong"))
    scale_tensor(wrong, "model.layers.2.self_attn.o_proj.weight", 1.05)
    tokens = seeded.tokens(1, 160, configs.load(folder).vocab)
    trace = trace_model(wrong, tokens, tmp_path / "trace.safetensors")
    assert any(line.startswith("logits err") for line in whole_model.failures(whole_model.report(folder, tokens, trace)))


def scale_tensor(folder, name, factor):
    """Rewrites one bf16 tensor of a checkpoint in place."""
    checkpoint = Checkpoint(folder, configs.load(folder).prefix)
    path, entry, base = checkpoint.entries[checkpoint.prefix + name]
    with open(path, "r+b") as f:
        f.seek(base + entry["data_offsets"][0])
        f.write(tensor_file.to_bf16(checkpoint.raw(name) * np.float32(factor)).tobytes())


def test_engine_against_transformers(trace_model, tmp_path):
    """The golden checkpoint: the engine is as near to transformers' fp64 logits as its own bound allows."""
    source = ROOT / "tests/data/goldens/kimi-linear-tiny"
    golden = tensor_file.load(source / "golden.safetensors")
    folder = seeded.make(source / "config.json", tmp_path / "model", GOLDEN_SEED)
    trace = trace_model(folder, golden["tokens"], tmp_path / "trace.safetensors")
    wrong = whole_model.failures(whole_model.report(folder, golden["tokens"], trace))
    assert not [line for line in wrong if "rows have a margin" not in line], wrong  # 80 rows are too few for a share
    # The engine may route a near-tie elsewhere, here and there; most rows see transformers' own numbers.
    error = np.linalg.norm(trace.logits - golden["logits"], axis=1) / np.linalg.norm(golden["logits"], axis=1)
    assert np.median(error) < 0.03


@pytest.fixture
def dummy_checkpoint(tmp_path):
    """make(family) -> a folder of the engine's own seeded weights."""
    program = tool("make_checkpoint")
    if program is None:
        pytest.skip("make_checkpoint is not built")

    def make(family):
        subprocess.run([program, CONFIGS / f"{family}-small.json", tmp_path / "dummy", "5"], check=True)
        return tmp_path / "dummy"

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_reads_the_dummy_checkpoint(family, dummy_checkpoint):
    logits = model.run(dummy_checkpoint(family), np.arange(20)).logits
    assert np.all(np.isfinite(logits)) and logits.std() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_on_the_dummy_checkpoint(family, dummy_checkpoint, trace_model, tmp_path):
    """Its lm_head knows nothing of the embeddings, so too few rows have a clear favourite for a share of 95 %."""
    folder = dummy_checkpoint(family)
    tokens = seeded.tokens(5, 320, configs.load(folder).vocab)
    trace = trace_model(folder, tokens, tmp_path / "trace.safetensors")
    wrong = whole_model.failures(whole_model.report(folder, tokens, trace))
    assert not [line for line in wrong if "rows have a margin" not in line], wrong
