"""The numpy oracle against Hugging Face transformers: whole kimi_linear, and the blocks of deepseek_v32 and glm5_next.

transformers keeps norm statistics and KDA in fp32 inside an fp64 model, so agreement ends near 1e-6.
"""

import numpy as np
import pytest
from oracle_paths import GOLDEN_SEED, ROOT
from oracle import bf16_reference, config as configs, dsa, kda, mla, model, seeded, tensor_file
from oracle.checkpoint import Checkpoint

GOLDENS = ROOT / "tests/data/goldens"
TOLERANCE = 1e-5


def relative(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """golden(name) -> the folder of the golden's checkpoint, made from its seed, and the golden's tensors."""
    made = {}

    def make(name):
        if name not in made:
            folder = seeded.make(GOLDENS / name / "config.json", tmp_path_factory.mktemp(name), GOLDEN_SEED)
            tensors = tensor_file.load(GOLDENS / name / "golden.safetensors")
            assert np.array_equal(seeded.digest(folder), tensors["weights_sha256"]), "seeded.py gives other weights"
            made[name] = folder, tensors
        return made[name]

    return make


@pytest.fixture(scope="module")
def tiny(golden):
    return golden("kimi-linear-tiny")


def block(golden, name, layer):
    folder, tensors = golden(name)
    return configs.load(folder), Checkpoint(folder).under(f"model.layers.{layer}.self_attn"), tensors


def test_whole_kimi_linear(tiny):
    folder, expected = tiny
    trace = model.run(folder, expected["tokens"])
    for i in range(len(trace.outputs) - 1):
        assert relative(trace.outputs[i], expected[f"layers.{i}.output"]) < TOLERANCE, f"layer {i}"
    assert relative(trace.logits, expected["logits"]) < TOLERANCE
    assert np.array_equal(trace.logits.argmax(1), expected["logits"].argmax(1))


def test_whole_kimi_linear_sees_a_small_change_of_a_weight(tiny):
    folder, expected = tiny
    name = "model.layers.0.self_attn.f_b_proj.weight"
    changed = Checkpoint(folder)(name) * 1.001
    trace = model.run(folder, expected["tokens"], overrides={name: changed})
    assert relative(trace.logits, expected["logits"]) > TOLERANCE


def test_bf16_reference_of_kimi_linear_is_near(tiny):
    folder, expected = tiny
    experts = model.run(folder, expected["tokens"])
    trace = bf16_reference.run(folder, expected["tokens"], given=experts)
    assert 1e-3 < relative(trace.logits, expected["logits"]) < 5e-2


@pytest.mark.parametrize(("name", "layer"), [("deepseek-v32-block", 0), ("glm5-next-block", 1)])
def test_mla_with_indexer(name, layer, golden):
    config, weight, expected = block(golden, name, layer)
    h = expected["h"].astype(np.float64)
    out, scores, _ = mla.layer(h, weight, config, is_dsa=True, selected=expected["selected"])
    assert relative(out, expected["mla"]) < TOLERANCE
    # Sets, by their scores: where no index head fires several keys score 0, and transformers takes any of them.
    own = dsa.select(scores, config.top_k)
    differing = 0
    for t, (ours, theirs) in enumerate(zip(own, expected["selected"], strict=True)):
        row = scores[t]
        assert np.allclose(np.sort(row[ours[ours >= 0]]), np.sort(row[theirs[theirs >= 0]]), rtol=0, atol=1e-9), t
        differing += not np.array_equal(ours, theirs)
    assert differing <= 0.15 * len(own)


def test_mla_golden_depends_on_the_selection(golden):
    config, weight, expected = block(golden, "deepseek-v32-block", 0)
    h = expected["h"].astype(np.float64)
    dense, *_ = mla.layer(h, weight, config)
    assert relative(dense, expected["mla"]) > 0.01
    one_off = expected["selected"].copy()
    missing = np.setdiff1d(np.arange(len(h)), one_off[-1])[0]
    one_off[-1] = np.sort(np.append(one_off[-1, 1:], missing))
    out, *_ = mla.layer(h, weight, config, is_dsa=True, selected=one_off)
    assert relative(out[-1], expected["mla"][-1]) > TOLERANCE
    assert relative(out[:-1], expected["mla"][:-1]) < TOLERANCE


def test_kda_with_bounded_decay(golden):
    config, weight, expected = block(golden, "glm5-next-block", 0)
    out = kda.layer(expected["h"].astype(np.float64), weight, config)
    assert relative(out, expected["kda"]) < TOLERANCE


def test_kda_bound_is_no_clamp(golden):
    config, weight, expected = block(golden, "glm5-next-block", 0)
    u = np.random.default_rng(0).standard_normal((3, config.kda_heads, config.kda_dim)) * 4
    a_log = weight("A_log")[: config.kda_heads]
    bounded = kda.log_decay(u, a_log, -5.0)
    assert not np.allclose(bounded, np.maximum(kda.log_decay(u, a_log, None), -5.0), atol=0.1)
    assert np.all((bounded < 0) & (bounded > -5))


def test_ties_go_to_the_earlier_key():
    scores = np.where(np.tri(6, dtype=bool), 1.0, -np.inf)
    assert dsa.select(scores, 3).tolist()[5] == [0, 1, 2]
    assert dsa.select(scores, 3).tolist()[1] == [0, 1, -1]
