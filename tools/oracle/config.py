"""Config: what config.json says, for the fields the oracle's formulas need. Layer indices are 0-based here."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    prefix: str  # of the text model's tensor names
    vocab: int
    hidden: int
    intermediate: int  # of the dense layers
    layers: int
    eps: float  # every RMSNorm and LayerNorm
    situ: bool  # SiTU-GLU, or SwiGLU
    situ_beta: float
    situ_linear_beta: float
    res_block: int  # AttnRes block size; 0: an ordinary residual stream
    kda_layers: frozenset
    kda_heads: int
    kda_dim: int
    gate_lower_bound: float | None
    full_rank_gate: bool
    heads: int  # MLA
    q_lora: int  # 0: a full q_proj
    kv_lora: int
    nope: int
    rope: int  # width of the shared key part; never rotated
    v_dim: int
    output_gate: bool
    dsa_layers: frozenset
    index_heads: int
    index_dim: int
    top_k: int
    dense_layers: int
    moe_freq: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    latent: int  # 0: experts read the full hidden vector
    latent_norm: bool
    renormalize: bool
    scaling: float

    def is_kda(self, layer):
        return layer in self.kda_layers

    def is_dsa(self, layer):
        return layer in self.dsa_layers

    def is_moe(self, layer):
        return layer >= self.dense_layers and layer % self.moe_freq == 0

    @property
    def moe_layers(self):
        return [i for i in range(self.layers) if self.is_moe(i)]


def from_json(root):
    """root: the dict of config.json, flat (Kimi-Linear) or with a text_config inside (K3, K3.1)."""
    text = root.get("text_config", root)
    lin = text["linear_attn_config"]
    dsa = text.get("dsa_config", {})
    groups = text.get("num_expert_group", 1)
    if groups != 1:
        raise ValueError(f"num_expert_group is {groups}; the oracle covers 1, as every released model has")
    kda = frozenset(i - 1 for i in lin["kda_layers"])
    full = frozenset(i - 1 for i in lin["full_attn_layers"])
    layers = text["num_hidden_layers"]
    if kda | full != frozenset(range(layers)) or kda & full:
        raise ValueError("kda_layers and full_attn_layers do not split the layers 1..num_hidden_layers")
    return Config(
        prefix="language_model." if "text_config" in root else "",
        vocab=text["vocab_size"],
        hidden=text["hidden_size"],
        intermediate=text["intermediate_size"],
        layers=layers,
        eps=text["rms_norm_eps"],
        situ=text["hidden_act"] == "situ",
        situ_beta=text.get("activation_situ_beta") or 0.0,
        situ_linear_beta=text.get("activation_situ_linear_beta") or 0.0,
        res_block=text.get("attn_res_block_size") or 0,
        kda_layers=kda,
        kda_heads=lin["num_heads"],
        kda_dim=lin["head_dim"],
        gate_lower_bound=lin.get("gate_lower_bound"),
        full_rank_gate=lin.get("use_full_rank_gate", False),
        heads=text["num_attention_heads"],
        q_lora=text.get("q_lora_rank") or 0,
        kv_lora=text["kv_lora_rank"],
        nope=text["qk_nope_head_dim"],
        rope=text["qk_rope_head_dim"],
        v_dim=text["v_head_dim"],
        output_gate=text.get("mla_use_output_gate", False),
        dsa_layers=frozenset(i - 1 for i in dsa.get("layers", [])),
        index_heads=dsa.get("num_heads", 0),
        index_dim=dsa.get("head_dim", 0),
        top_k=dsa.get("top_k", 0),
        dense_layers=text["first_k_dense_replace"],
        moe_freq=text.get("moe_layer_freq", 1),
        experts=text["num_experts"],
        experts_per_token=text["num_experts_per_token"],
        shared_experts=text["num_shared_experts"],
        expert_width=text["moe_intermediate_size"],
        latent=text.get("routed_expert_hidden_size") or 0,
        latent_norm=text.get("latent_moe_use_norm", False),
        renormalize=text["moe_renormalize"],
        scaling=text["routed_scaling_factor"],
    )


def load(path):
    """A folder with a config.json, or a config file."""
    path = Path(path)
    return from_json(json.loads((path / "config.json" if path.is_dir() else path).read_text()))
