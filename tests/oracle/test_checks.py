"""Tests of the whole-model checks: a stand-in engine passes them, and each way of being wrong fails them.

The stand-in is the bf16 reference with an e4m3 index, choosing its own keys and experts.
"""

import copy
import json

import numpy as np
import pytest
import whole_model
from oracle_paths import ROOT
from oracle import bf16_reference, compare, config as configs, model, seeded, trace as traces
from oracle.checkpoint import Checkpoint

SEED, TOKENS = 1, 320


class Setting:
    def __init__(self, family, folder):
        self.config_file = f"{family}-small.json"
        self.folder = seeded.make(ROOT / "tests/data/configs" / self.config_file, folder, SEED)
        self.config = configs.load(self.folder)
        self.tokens = seeded.tokens(SEED, TOKENS, self.config.vocab)
        self.trace = self.run()

    def run(self, overrides=None):
        return bf16_reference.run(self.folder, self.tokens, fp8_index=True, overrides=overrides)

    def failures(self, trace):
        return "\n".join(whole_model.failures(whole_model.report(self.folder, self.tokens, trace)))

    def scaled(self, name, factor):
        return {name: Checkpoint(self.folder, self.config.prefix)(name) * factor}


@pytest.fixture(scope="module", params=["kimi-linear", "kimi-k3", "k31"])
def setting(request, tmp_path_factory):
    return Setting(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    return Setting("k31", tmp_path_factory.mktemp("sparse"))


def test_stand_in_passes(setting):
    numbers = whole_model.report(setting.folder, setting.tokens, setting.trace)
    assert whole_model.failures(numbers) == []
    assert numbers["error"] == numbers["bound"]


def test_perturbed_weight_fails(setting):
    broken = setting.run(setting.scaled("model.layers.2.self_attn.o_proj.weight", 1.05))
    assert "logits err" in setting.failures(broken)


def test_wrong_token_order_fails(sparse):
    broken = copy.copy(sparse.trace)
    broken.logits = np.roll(sparse.trace.logits, 1, axis=0)
    text = sparse.failures(broken)
    assert "logits err" in text and "greedy tokens agree" in text


def test_wrong_router_bias_fails(sparse):
    name = "model.layers.1.block_sparse_moe.gate.e_score_correction_bias"
    assert "experts differ" in sparse.failures(sparse.run(sparse.scaled(name, 0.0)))


def test_wrong_index_weight_fails(sparse):
    name = "model.layers.3.self_attn.indexer.k_norm.bias"
    assert "layer 3" in sparse.failures(sparse.run(sparse.scaled(name, -1.0)))


def test_selection_without_an_indexer_fails(sparse):
    """The most recent keys instead of the best ones."""
    broken = copy.copy(sparse.trace)
    recent = np.arange(TOKENS)[:, None] - np.arange(sparse.config.top_k)[None, ::-1]
    recent = np.stack([np.append(row[row >= 0], row[row < 0] * 0 - 1) for row in recent]).astype(np.int32)
    broken.selected = dict.fromkeys(sparse.trace.selected, recent)
    text = sparse.failures(broken)
    assert "keys differ" in text and "of the keys are the oracle's" in text


@pytest.mark.parametrize(
    "change", [lambda s: s[:, ::-1], lambda s: np.where(s == s[-1, -1], -1, s), lambda s: s[:, :-1], lambda s: s + 1]
)
def test_malformed_selection_is_refused(sparse, change):
    selected, available = sparse.trace.selected[3], np.arange(1, TOKENS + 1)
    compare.check_well_formed(selected, available, sparse.config.top_k)
    with pytest.raises(AssertionError):
        compare.check_well_formed(change(selected), available, sparse.config.top_k)


def test_sparse_and_dense_models_agree_below_top_k(tmp_path):
    """The two K3 checkpoints of one seed differ in the indexer alone, which has no say below the top-k."""
    folders = [
        seeded.make(ROOT / f"tests/data/configs/{f}-small.json", tmp_path / f, 3) for f in ("kimi-k3", "k31")
    ]
    tokens = np.arange(64)
    dense, sparse = (model.run(folder, tokens).logits for folder in folders)
    assert np.allclose(dense, sparse, rtol=0, atol=1e-12)


def test_trace_survives_its_file(sparse, tmp_path):
    traces.save(tmp_path / "t.safetensors", sparse.trace)
    again = traces.load(tmp_path / "t.safetensors")
    assert np.array_equal(again.logits, sparse.trace.logits)
    for ours, theirs in ((again.selected, sparse.trace.selected), (again.experts, sparse.trace.experts)):
        assert ours.keys() == theirs.keys() and all(np.array_equal(ours[i], theirs[i]) for i in ours)


def test_emulated_bf16_run_is_as_far_off_as_pytorch(setting):
    """bf16_pytorch_error.json holds what PyTorch gave on the same checkpoints, tokens and selections."""
    rows = json.loads((ROOT / "tests/oracle/bf16_pytorch_error.json").read_text())["relative_l2_error_of_logits"]
    numbers = whole_model.report(setting.folder, setting.tokens, setting.trace)
    wanted = (setting.config_file, SEED, TOKENS)
    (measured,) = [r for r in rows if (r["config"], r["seed"], r["tokens"]) == wanted]
    assert numbers["bound"] == pytest.approx(measured["torch_bf16"], rel=0.05)
    assert measured["torch_fp64"] < 1e-12
