"""The committed stage vectors are what make_stage_vectors.py gives, and MLA's absorbed form is its unabsorbed one."""

import make_stage_vectors
import numpy as np
import pytest
from oracle_paths import ROOT
from oracle import mla, ops, seeded, tensor_file


@pytest.mark.parametrize("name", make_stage_vectors.MAKERS)
def test_vectors_are_current(name, tmp_path):
    tensor_file.save(tmp_path / "made.safetensors", make_stage_vectors.MAKERS[name]())
    made = tensor_file.load(tmp_path / "made.safetensors")
    kept = tensor_file.load(ROOT / f"tests/data/stages/{name}.safetensors")
    assert made.keys() == kept.keys()
    for key in made:
        assert np.allclose(made[key], kept[key], rtol=1e-12, atol=1e-14), key


def test_absorbed_attention_equals_the_unabsorbed():
    def normal(name, shape):
        return seeded.Random(1, name).normal(shape)

    q, up, latent = normal("q", (1, 2, 192)), normal("kv_b", (2, 256, 512)) * 512**-0.5, normal("latent", (6, 576))
    absorbed = np.stack([np.append(q[0, h, :128] @ up[h, :128], q[0, h, 128:]) for h in range(2)])
    z = ops.softmax(absorbed @ latent.T * 192**-0.5) @ latent[:, :512]
    kv = np.einsum("hoc,tc->tho", up, latent[:, :512])
    k = np.concatenate([kv[..., :128], np.repeat(latent[:, None, 512:], 2, axis=1)], axis=-1)
    out = mla.attend(q, k, kv[..., 128:], np.ones((1, 6), bool), 192**-0.5)
    assert np.allclose(out[0], np.einsum("hoc,hc->ho", up[:, 128:], z), rtol=0, atol=1e-12)
