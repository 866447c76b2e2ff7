"""Every parameter of the model: checkpoint name (the experts of a layer stacked), shape, stored type, start value.

The model computes with these tensors as they are stored; fp32 masters live in the optimiser.
"""
import math

import torch

kPrefix = "language_model."


def is_kda(text, layer):
    return layer + 1 in text["linear_attn_config"]["kda_layers"]


def layer_prefix(layer):
    return f"{kPrefix}model.layers.{layer}."


def roster(text):
    """name -> (shape, dtype, kind of start value)"""
    d, h, bf16, f32 = text["hidden_size"], text["num_attention_heads"], torch.bfloat16, torch.float32
    kda, dsa = text["linear_attn_config"], text["dsa_config"]
    kd = kda["num_heads"] * kda["head_dim"]
    out = {}

    def matrix(name, rows, columns):
        out[name] = ((rows, columns), bf16, "matrix")

    def mlp(prefix, inner):
        for name, shape in (("gate_proj", (inner, d)), ("up_proj", (inner, d)), ("down_proj", (d, inner))):
            matrix(f"{prefix}{name}.weight", *shape)

    def norm(name, size, dtype=bf16):
        out[name] = ((size,), dtype, "one")

    m = kPrefix + "model."
    out[m + "embed_tokens.weight"] = ((text["vocab_size"], d), bf16, "embed")
    for i in range(text["num_hidden_layers"]):
        p = layer_prefix(i)
        norm(p + "input_layernorm.weight", d)
        norm(p + "post_attention_layernorm.weight", d)
        for name in ("self_attention_res", "mlp_res"):
            norm(f"{p}{name}_norm.weight", d)
            out[f"{p}{name}_proj.weight"] = ((1, d), bf16, "zero")
        a = p + "self_attn."
        if is_kda(text, i):
            for name in "qkv":
                matrix(f"{a}{name}_proj.weight", kd, d)
                out[f"{a}{name}_conv1d.weight"] = ((kd, 1, kda["short_conv_kernel_size"]), f32, "conv")
            matrix(a + "f_a_proj.weight", kda["head_dim"], d)
            matrix(a + "f_b_proj.weight", kd, kda["head_dim"])
            matrix(a + "b_proj.weight", kda["num_heads"], d)
            out[a + "A_log"] = ((kda["num_heads"],), f32, "zero")
            out[a + "dt_bias"] = ((kd,), f32, "decay")
            matrix(a + "g_proj.weight", kd, d)
            norm(a + "o_norm.weight", kda["head_dim"], f32)
            matrix(a + "o_proj.weight", d, kd)
        else:
            q, c, pe, nope, v = (text[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
            matrix(a + "q_a_proj.weight", q, d)
            norm(a + "q_a_layernorm.weight", q)
            matrix(a + "q_b_proj.weight", h * (nope + pe), q)
            matrix(a + "kv_a_proj_with_mqa.weight", c + pe, d)
            norm(a + "kv_a_layernorm.weight", c)
            matrix(a + "kv_b_proj.weight", h * (nope + v), c)
            matrix(a + "g_proj.weight", h * v, d)
            matrix(a + "o_proj.weight", d, h * v)
            matrix(a + "indexer.wq_b.weight", dsa["num_heads"] * dsa["head_dim"], q)
            matrix(a + "indexer.wk.weight", dsa["head_dim"], d)
            matrix(a + "indexer.weights_proj.weight", dsa["num_heads"], d)
            norm(a + "indexer.k_norm.weight", dsa["head_dim"])
            out[a + "indexer.k_norm.bias"] = ((dsa["head_dim"],), bf16, "zero")
        if i < text["first_k_dense_replace"]:
            mlp(p + "mlp.", text["intermediate_size"])
            continue
        b, e, z, f = p + "block_sparse_moe.", text["num_experts"], text["routed_expert_hidden_size"], text["moe_intermediate_size"]
        matrix(b + "gate.weight", e, d)
        out[b + "gate.e_score_correction_bias"] = ((e,), f32, "zero")
        matrix(b + "routed_expert_down_proj.weight", z, d)
        norm(b + "routed_expert_norm.weight", z)
        matrix(b + "routed_expert_up_proj.weight", d, z)
        mlp(b + "shared_experts.", f * text["num_shared_experts"])
        for name, shape in (("w1", (e, f, z)), ("w3", (e, f, z)), ("w2", (e, z, f))):
            out[f"{b}experts.{name}"] = (shape, bf16, "matrix")
    norm(m + "norm.weight", d)
    norm(m + "output_attn_res_norm.weight", d)
    out[m + "output_attn_res_proj.weight"] = ((1, d), bf16, "zero")
    out[kPrefix + "lm_head.weight"] = ((text["vocab_size"], d), bf16, "head")
    return out


def start_values(text, device, seed=0):
    """fp32 start values of every parameter."""
    rng = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, _, kind) in roster(text).items():
        if kind in ("one", "zero"):
            value = torch.full(shape, float(kind == "one"))
        elif kind == "embed":
            value = torch.randn(shape, generator=rng) * 0.5
        elif kind == "head":
            value = torch.randn(shape, generator=rng) * (0.5 / math.sqrt(shape[-1]))
        elif kind == "conv":
            value = torch.randn(shape, generator=rng) * 0.1
            value[:, 0, -1] += 1.0
        elif kind == "decay":  # log-uniform sigmoid in [1e-4, 0.2]: memory of a few tokens to thousands
            sigma = torch.exp(torch.empty(shape).uniform_(math.log(1e-4), math.log(0.2), generator=rng))
            value = torch.log(sigma / (1 - sigma))
        else:
            value = torch.randn(shape, generator=rng) * (0.7 / math.sqrt(shape[-1]))
        out[name] = value.to(device)
    return out
