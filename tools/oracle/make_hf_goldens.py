"""Goldens from Hugging Face transformers: what its modules give on small seeded weights, for tests that need no PyTorch.

PYTHONPATH=tools python -m oracle.make_hf_goldens tests/data/goldens [OUT_DIR]

Each folder below the first argument has a config.json; the weights come from seeded.py, and the golden holds their digest.
Written beside the config, or to OUT_DIR/<folder>.safetensors: golden.safetensors with inputs and outputs. Modules run in fp64 where transformers lets them
(its norms and its KDA cast to fp32). Made with torch 2.11 and transformers 5.17, without the fla package.
"""

import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch

from . import config as configs, seeded, tensor_file
from .checkpoint import Checkpoint

SEED, TOKENS, BLOCK_TOKENS = 7, 80, 72


def tensor(x):
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.float64)


def hidden_input(config, scope):
    return tensor_file.to_bf16(seeded.Random(SEED, scope).normal((BLOCK_TOKENS, config.hidden)))


def load_into(module, state):
    """Every parameter of the module must be in `state`, in its shape."""
    module.double()
    module.load_state_dict({name: tensor(x) for name, x in state.items()}, strict=True)
    return module.eval()


def mla_state(weight, config):
    names = ["q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"]
    names += [f"indexer.{x}" for x in ("wq_b", "wk", "weights_proj", "k_norm")]
    return {f"{n}.weight": weight(f"{n}.weight") for n in names} | {"indexer.k_norm.bias": weight("indexer.k_norm.bias")}


def kda_state(weight, config):
    names = [f"{x}_proj" for x in ("q", "k", "v", "b", "g_a", "g_b", "o")] + ["o_norm"]
    state = {f"{n}.weight": weight(f"{n}.weight") for n in names}
    state |= {f"forget_gate.{x}_proj.weight": weight(f"{x}_proj.weight") for x in ("f_a", "f_b")}
    state["conv1d.weight"] = np.concatenate([weight(f"{x}_conv1d.weight") for x in "qkv"])
    state["forget_gate.dt_bias"] = weight("dt_bias")
    state["forget_gate.A_log"] = weight("A_log").reshape(-1)[: config.kda_heads]
    return state


def shared_fields(config):
    return dict(
        vocab_size=config.vocab,
        pad_token_id=None,
        hidden_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        q_lora_rank=config.q_lora,
        kv_lora_rank=config.kv_lora,
        qk_nope_head_dim=config.nope,
        qk_rope_head_dim=config.rope,
        v_head_dim=config.v_dim,
        rms_norm_eps=config.eps,
        index_n_heads=config.index_heads,
        index_head_dim=config.index_dim,
        index_topk=config.top_k,
        attn_implementation="eager",
    )


def kimi_linear(folder, config):
    """The whole model, loaded by transformers from the folder itself."""
    from transformers import KimiLinearForCausalLM

    model = KimiLinearForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    tokens = seeded.tokens(SEED, TOKENS, config.vocab)
    out = model(torch.from_numpy(tokens).long()[None], output_hidden_states=True, use_cache=False)
    golden = {"tokens": tokens, "logits": out.logits[0].double().numpy().astype(np.float32)}
    for i, x in enumerate(out.hidden_states[1 : config.layers]):  # the last one is after the final norm
        golden[f"layers.{i}.output"] = x[0].double().numpy().astype(np.float32)
    return golden


def deepseek_v32(folder, config):
    """MLA with its indexer; the rotation is the identity (cos 1, sin 0)."""
    from transformers import DeepseekV32Config
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention

    hf_config = DeepseekV32Config(**shared_fields(config))
    scope = "model.layers.0.self_attn"
    module = load_into(DeepseekV32Attention(hf_config, 0), mla_state(Checkpoint(folder).under(scope), config))
    h = hidden_input(config, scope)
    x = tensor(tensor_file.from_bf16(h))[None]
    cos, sin = torch.ones(1, BLOCK_TOKENS, config.rope).double(), torch.zeros(1, BLOCK_TOKENS, config.rope).double()
    lowest = torch.finfo(torch.float64).min
    mask = torch.full((BLOCK_TOKENS, BLOCK_TOKENS), lowest, dtype=torch.float64).triu(1)[None, None]
    out, _ = module(x, (cos, sin), mask)
    selected = module.indexer(x, module.q_a_layernorm(module.q_a_proj(x)), (cos, sin), mask[:, 0], None)
    return {"h": h, "mla": out[0].numpy().astype(np.float32), "selected": ascending(selected[0].numpy())}


def glm5_next(folder, config):
    """KDA with the bounded decay, and NoPE MLA with its indexer in pools of one key, which is plain DSA."""
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextAttention, Glm5NextTextLinearAttention

    hf_config = Glm5NextTextConfig(
        **shared_fields(config),
        index_kpool=1,
        linear_head_dim=config.kda_dim,
        linear_num_heads=config.kda_heads,
        linear_lower_bound=config.gate_lower_bound,
        layer_types=["linear_attention", "deepseek_sparse_attention"],
        indexer_types=["full", "full"],
        mlp_layer_types=["dense", "dense"],
    )
    checkpoint = Checkpoint(folder)
    h = hidden_input(config, "model.layers.0.self_attn")
    x = tensor(tensor_file.from_bf16(h))[None]
    state = kda_state(checkpoint.under("model.layers.0.self_attn"), config)
    kda = load_into(Glm5NextTextLinearAttention(hf_config, 0), state)(x)

    state = mla_state(checkpoint.under("model.layers.1.self_attn"), config)
    pools = {"indexer.index_kpool_compress_ape": (1, config.index_dim)}
    pools["indexer.index_kpool_compress_gate"] = (config.index_dim, config.hidden)
    state |= {name: np.zeros(shape) for name, shape in pools.items()}
    module = load_into(Glm5NextTextAttention(hf_config, 1), state)
    valid = torch.ones(1, BLOCK_TOKENS, dtype=torch.bool)
    mla = module(x, valid)[0]
    selected = module.indexer(x, module.q_a_layernorm(module.q_a_proj(x)), valid, None)
    golden = {"h": h, "selected": ascending(selected[0].numpy())}
    return golden | {"kda": kda[0].numpy().astype(np.float32), "mla": mla[0].numpy().astype(np.float32)}


def ascending(indices):
    """Keeps the keys up to each row, ascending, padded with -1 at the end."""
    tokens = len(indices)
    late = np.where((indices < 0) | (indices > np.arange(tokens)[:, None]), tokens, indices)
    late = np.sort(late, axis=1)
    return np.where(late == tokens, -1, late).astype(np.int32)


PARTS = {"kimi-linear-tiny": kimi_linear, "deepseek-v32-block": deepseek_v32, "glm5-next-block": glm5_next}


def main():
    root = Path(sys.argv[1])
    failed = 0
    for name, part in PARTS.items():
        out = Path(sys.argv[2]) / f"{name}.safetensors" if len(sys.argv) > 2 else root / name / "golden.safetensors"
        try:
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                seeded.make(root / name / "config.json", folder, SEED)
                golden = part(folder, configs.load(folder)) | {"weights_sha256": seeded.digest(folder)}
                tensor_file.save(out, golden)
            print(name, "ok", flush=True)
        except Exception:
            traceback.print_exc()
            failed += 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
