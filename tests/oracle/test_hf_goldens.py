"""The numpy oracle against Hugging Face transformers: whole kimi_linear, and the blocks of deepseek_v32 and glm5_next.

transformers keeps norm statistics and KDA in fp32 inside an fp64 model, so agreement ends near 1e-6.
"""

import numpy as np
import pytest
from conftest import ROOT
from oracle import bf16_reference, config as configs, dsa, kda, mla, model, tensor_file
from oracle.checkpoint import Checkpoint

GOLDENS = ROOT / "tests/data/goldens"
TOLERANCE = 1e-5


def relative(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


@pytest.fixture(scope="module")
def tiny():
    return tensor_file.load(GOLDENS / "kimi-linear-tiny/golden.safetensors")


def block(name, layer):
    folder = GOLDENS / name
    weight = Checkpoint(folder).under(f"model.layers.{layer}.self_attn")
    return configs.load(folder), weight, tensor_file.load(folder / "golden.safetensors")


def test_whole_kimi_linear(tiny):
    trace = model.run(GOLDENS / "kimi-linear-tiny", tiny["tokens"])
    for i in range(len(trace.outputs) - 1):
        assert relative(trace.outputs[i], tiny[f"layers.{i}.output"]) < TOLERANCE, f"layer {i}"
    assert relative(trace.logits, tiny["logits"]) < TOLERANCE
    assert np.array_equal(trace.logits.argmax(1), tiny["logits"].argmax(1))


def test_whole_kimi_linear_sees_a_small_change_of_a_weight(tiny):
    name = "model.layers.0.self_attn.f_b_proj.weight"
    folder = GOLDENS / "kimi-linear-tiny"
    changed = Checkpoint(folder)(name) * 1.001
    trace = model.run(folder, tiny["tokens"], overrides={name: changed})
    assert relative(trace.logits, tiny["logits"]) > TOLERANCE


def test_bf16_reference_of_kimi_linear_is_near(tiny):
    trace = bf16_reference.run(GOLDENS / "kimi-linear-tiny", tiny["tokens"])
    assert 1e-3 < relative(trace.logits, tiny["logits"]) < 5e-2


@pytest.mark.parametrize(("name", "layer"), [("deepseek-v32-block", 0), ("glm5-next-block", 1)])
def test_mla_with_indexer(name, layer):
    config, weight, golden = block(name, layer)
    h = golden["h"].astype(np.float64)
    out, scores, _ = mla.layer(h, weight, config, is_dsa=True, selected=golden["selected"])
    assert relative(out, golden["mla"]) < TOLERANCE
    # Sets, by their scores: where no index head fires several keys score 0, and transformers takes any of them.
    own = dsa.select(scores, config.top_k)
    differing = 0
    for t, (ours, theirs) in enumerate(zip(own, golden["selected"], strict=True)):
        row = scores[t]
        assert np.allclose(np.sort(row[ours[ours >= 0]]), np.sort(row[theirs[theirs >= 0]]), rtol=0, atol=1e-9), t
        differing += not np.array_equal(ours, theirs)
    assert differing <= 0.15 * len(own)


def test_mla_golden_depends_on_the_selection():
    config, weight, golden = block("deepseek-v32-block", 0)
    h = golden["h"].astype(np.float64)
    dense, *_ = mla.layer(h, weight, config)
    assert relative(dense, golden["mla"]) > 0.01
    one_off = golden["selected"].copy()
    missing = np.setdiff1d(np.arange(len(h)), one_off[-1])[0]
    one_off[-1] = np.sort(np.append(one_off[-1, 1:], missing))
    out, *_ = mla.layer(h, weight, config, is_dsa=True, selected=one_off)
    assert relative(out[-1], golden["mla"][-1]) > TOLERANCE
    assert relative(out[:-1], golden["mla"][:-1]) < TOLERANCE


def test_kda_with_bounded_decay():
    config, weight, golden = block("glm5-next-block", 0)
    out = kda.layer(golden["h"].astype(np.float64), weight, config)
    assert relative(out, golden["kda"]) < TOLERANCE


def test_kda_bound_is_no_clamp():
    config, weight, golden = block("glm5-next-block", 0)
    u = np.random.default_rng(0).standard_normal((3, config.kda_heads, config.kda_dim)) * 4
    a_log = weight("A_log")[: config.kda_heads]
    bounded = kda.log_decay(u, a_log, -5.0)
    assert not np.allclose(bounded, np.maximum(kda.log_decay(u, a_log, None), -5.0), atol=0.1)
    assert np.all((bounded < 0) & (bounded > -5))


def test_ties_go_to_the_earlier_key():
    scores = np.where(np.tri(6, dtype=bool), 1.0, -np.inf)
    assert dsa.select(scores, 3).tolist()[5] == [0, 1, 2]
    assert dsa.select(scores, 3).tolist()[1] == [0, 1, -1]
