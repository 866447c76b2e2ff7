"""The engine's whole forward pass against the fp64 oracle, on seeded checkpoints of the three families.

Contexts are several times the top-k (64), the KDA chunk (16) and the page (64). The oracle is given the engine's selected
keys and experts; the bound on the logits is the error of an eager bf16 PyTorch run with the same selections.
"""

import json

import numpy as np
import pytest
import whole_model
from conftest import GOLDEN_SEED, ROOT, tool
from oracle import config as configs, seeded, tensor_file

FAMILIES = ["kimi-linear", "kimi-k3", "k31"]
CONFIGS = ROOT / "tests/data/configs"


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(("seed", "count"), [(1, 320), (2, 650)])
@pytest.mark.parametrize("family", FAMILIES)
def test_engine(family, seed, count, lanes, trace_model, tmp_path, record_property):
    folder = seeded.make(CONFIGS / f"{family}-small.json", tmp_path / "model", seed)
    tokens = seeded.tokens(seed, count, configs.load(folder).vocab)
    check(folder, tokens, trace_model, tmp_path, record_property, "--lanes", str(lanes))


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


def check(folder, tokens, trace_model, tmp_path, record_property, *flags, greedy=True):
    trace = trace_model(folder, tokens, tmp_path / "trace.safetensors", *flags)
    numbers = whole_model.report(folder, tokens, trace)
    for name, value in numbers.items():
        print(f"{name}: {value}")
    record_property("error", numbers["error"])
    record_property("bound", numbers["bound"])
    record_property("greedy compared", numbers["greedy"].compared)
    wrong = whole_model.failures(numbers)
    if not greedy:  # this checkpoint's vocabulary is too small for wide margins
        wrong = [line for line in wrong if not line.startswith("only")]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", FAMILIES)
def test_dummy_checkpoint_of_the_engine_loads_here(name, tmp_path):
    """Names and shapes of make_checkpoint's files are those the oracle reads."""
    import subprocess

    from oracle import model

    program = tool("make_checkpoint")
    if program is None:
        pytest.skip("make_checkpoint is not built")
    subprocess.run([program, CONFIGS / f"{name}-small.json", tmp_path / "model", "5"], check=True)
    trace = model.run(tmp_path / "model", np.arange(20))
    assert np.all(np.isfinite(trace.logits)) and trace.logits.std() > 0
    assert json.loads((tmp_path / "model/config.json").read_text())
