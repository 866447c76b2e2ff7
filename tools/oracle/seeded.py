"""Seeded checkpoints: a Hugging Face folder of random weights for a config, scaled so that every block matters.

Attention is peaked, decays spread over fast and slow, routers and indexers are far from uniform, and lm_head leans on the
embeddings, so that greedy margins are those of a model that has something to say.
"""

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np

from . import config as configs, tensor_file
from .tensor_file import round_bf16, to_bf16

E2M1_RMS = 2.93  # of uniformly drawn codes


class Random:
    """Numbers from raw PCG64 words by exact arithmetic: the same with every numpy."""

    def __init__(self, seed, name):
        self.words = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw

    def uniform(self, low, high, shape):
        return low + (high - low) * (self.words(int(np.prod(shape))) >> 11).reshape(shape) * 2.0**-53

    def normal(self, shape):
        """Mean 0, deviation 1: the sum of four 16-bit numbers, scaled."""
        quarters = self.words(int(np.prod(shape))).reshape(shape)
        total = sum((quarters >> shift) & 0xFFFF for shift in (0, 16, 32, 48)).astype(np.float64)
        return (total - 2 * 65535) / (65536 * 3**-0.5)

    def integers(self, count, shape):
        """0 … count − 1 for a power of two."""
        return (self.words(int(np.prod(shape))) >> 32).reshape(shape) % count

    def permutation(self, count):
        return np.argsort(self.words(count), kind="stable")


class Writer:
    def __init__(self, config, seed):
        self.config, self.seed = config, seed
        self.tensors = {}

    def rng(self, name):
        return Random(self.seed, name)

    def put(self, name, values, dtype="bf16"):
        x = np.asarray(values, np.float32)
        self.tensors[self.config.prefix + name] = to_bf16(x) if dtype == "bf16" else x

    def linear(self, name, out, fan_in, gain=1.0):
        self.put(name, self.rng(name).normal((out, fan_in)) * gain * fan_in**-0.5)

    def norm(self, name, size, dtype="bf16"):
        self.put(name, 1 + 0.1 * self.rng(name).normal(size), dtype)

    def mxfp4(self, name, out, fan_in):
        rng = self.rng(name)
        base = 127 + round(np.log2(fan_in**-0.5 / E2M1_RMS))
        packed = rng.integers(256, (out, fan_in // 2)).astype(np.uint8)
        scale = (base + np.array([-1, 0, 0, 1])[rng.integers(4, (out, fan_in // 32))]).astype(np.uint8)
        self.tensors[f"{self.config.prefix}{name}_packed"] = packed
        self.tensors[f"{self.config.prefix}{name}_scale"] = scale


def put_kda(w, scope, small):
    c = w.config
    width = c.kda_heads * c.kda_dim
    for x in "qkv":
        w.linear(f"{scope}.{x}_proj.weight", width, c.hidden)
        taps = w.rng(f"{scope}.{x}_conv").normal((width, 1, 4)) * 0.4
        taps[:, :, 3] += 1
        w.put(f"{scope}.{x}_conv1d.weight", taps, small)
    w.linear(f"{scope}.f_a_proj.weight", c.kda_dim, c.hidden)
    w.linear(f"{scope}.f_b_proj.weight", width, c.kda_dim)
    w.linear(f"{scope}.b_proj.weight", c.kda_heads, c.hidden)
    rng = w.rng(f"{scope}.decay")
    if c.gate_lower_bound is None:
        a_log = np.log(rng.uniform(1, 16, (1, 1, c.kda_heads, 1)))
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), width))
        w.put(f"{scope}.dt_bias", step + np.log(-np.expm1(-step)), "f32")
    else:
        a_log = np.zeros(128)  # padded beyond the heads, as the released files are
        a_log[: c.kda_heads] = rng.uniform(-0.5, 1, c.kda_heads)
        w.put(f"{scope}.dt_bias", rng.uniform(-5, 1, width), "f32")
    w.put(f"{scope}.A_log", a_log, "f32")
    if c.full_rank_gate:
        w.linear(f"{scope}.g_proj.weight", width, c.hidden)
    else:
        w.linear(f"{scope}.g_a_proj.weight", c.kda_dim, c.hidden)
        w.linear(f"{scope}.g_b_proj.weight", width, c.kda_dim)
    w.norm(f"{scope}.o_norm.weight", c.kda_dim, small)
    w.linear(f"{scope}.o_proj.weight", c.hidden, width)


def put_mla(w, scope, is_dsa):
    c = w.config
    q_width = c.heads * (c.nope + c.rope)
    if c.q_lora:
        w.linear(f"{scope}.q_a_proj.weight", c.q_lora, c.hidden)
        w.norm(f"{scope}.q_a_layernorm.weight", c.q_lora)
        w.linear(f"{scope}.q_b_proj.weight", q_width, c.q_lora, gain=2.5)
    else:
        w.linear(f"{scope}.q_proj.weight", q_width, c.hidden, gain=2.5)
    w.linear(f"{scope}.kv_a_proj_with_mqa.weight", c.kv_lora + c.rope, c.hidden)
    w.norm(f"{scope}.kv_a_layernorm.weight", c.kv_lora)
    w.linear(f"{scope}.kv_b_proj.weight", c.heads * (c.nope + c.v_dim), c.kv_lora)
    if c.output_gate:
        w.linear(f"{scope}.g_proj.weight", c.heads * c.v_dim, c.hidden)
    w.linear(f"{scope}.o_proj.weight", c.hidden, c.heads * c.v_dim, gain=2.0)
    if is_dsa:
        w.linear(f"{scope}.indexer.wq_b.weight", c.index_heads * c.index_dim, c.q_lora)
        w.linear(f"{scope}.indexer.wk.weight", c.index_dim, c.hidden)
        w.linear(f"{scope}.indexer.weights_proj.weight", c.index_heads, c.hidden)
        w.norm(f"{scope}.indexer.k_norm.weight", c.index_dim)
        w.put(f"{scope}.indexer.k_norm.bias", 0.1 * w.rng(f"{scope}.k_norm.bias").normal(c.index_dim))


def put_mlp(w, scope, width):
    w.linear(f"{scope}.gate_proj.weight", width, w.config.hidden)
    w.linear(f"{scope}.up_proj.weight", width, w.config.hidden)
    w.linear(f"{scope}.down_proj.weight", w.config.hidden, width)


def put_moe(w, scope):
    c = w.config
    fan_in = c.latent or c.hidden
    w.linear(f"{scope}.gate.weight", c.experts, c.hidden)
    bias = 0.05 * w.rng(f"{scope}.bias").normal(c.experts)
    w.put(f"{scope}.gate.e_score_correction_bias", bias, "f32")
    if c.latent:
        w.linear(f"{scope}.routed_expert_down_proj.weight", c.latent, c.hidden)
        w.norm(f"{scope}.routed_expert_norm.weight", c.latent)
        w.linear(f"{scope}.routed_expert_up_proj.weight", c.hidden, c.latent)
    put_expert = w.mxfp4 if c.latent else w.linear
    for e in range(c.experts):
        put_expert(f"{scope}.experts.{e}.w1.weight", c.expert_width, fan_in)
        put_expert(f"{scope}.experts.{e}.w3.weight", c.expert_width, fan_in)
        put_expert(f"{scope}.experts.{e}.w2.weight", fan_in, c.expert_width)
    if c.shared_experts:
        put_mlp(w, f"{scope}.shared_experts", c.shared_experts * c.expert_width)


def tensors(config, seed, lean):
    """All tensors by file name. lean: how far lm_head leans on the embeddings."""
    w = Writer(config, seed)
    small = "f32" if config.prefix else "bf16"  # K3's files keep conv taps and o_norm in fp32
    embedding = round_bf16(1.25 * w.rng("embedding").normal((config.vocab, config.hidden)))
    w.put("model.embed_tokens.weight", embedding)
    for i in range(config.layers):
        scope = f"model.layers.{i}"
        if config.is_kda(i):
            put_kda(w, f"{scope}.self_attn", small)
        else:
            put_mla(w, f"{scope}.self_attn", config.is_dsa(i))
        if config.is_moe(i):
            put_moe(w, f"{scope}.block_sparse_moe")
        else:
            put_mlp(w, f"{scope}.mlp", config.intermediate)
        w.norm(f"{scope}.input_layernorm.weight", config.hidden)
        w.norm(f"{scope}.post_attention_layernorm.weight", config.hidden)
        if config.res_block:
            for name in ("self_attention_res", "mlp_res"):
                w.norm(f"{scope}.{name}_norm.weight", config.hidden)
                w.linear(f"{scope}.{name}_proj.weight", 1, config.hidden)
    if config.res_block:
        w.norm("model.output_attn_res_norm.weight", config.hidden)
        w.linear("model.output_attn_res_proj.weight", 1, config.hidden, gain=0.3)
    w.norm("model.norm.weight", config.hidden)
    head = w.rng("lm_head").normal((config.vocab, config.hidden))
    following = w.rng("following").permutation(config.vocab)  # the token each token asks for next
    head[following] += lean * embedding  # margins grow with it
    w.put("lm_head.weight", head * config.hidden**-0.5)
    return w.tensors


def tokens(seed, count, vocab):
    """Token ids for tests; vocab a power of two."""
    return Random(seed, "tokens").integers(vocab, count).astype(np.int32)


def make(config_file, folder, seed, lean=2.0):
    """Writes config.json and weights: one file for a flat config, else two shards with an index. Returns the folder."""
    root = json.loads(Path(config_file).read_text())
    root.pop("vision_config", None)  # the oracle reads text alone
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(root, indent=1))
    every = tensors(configs.from_json(root), seed, lean)
    if "text_config" not in root:
        tensor_file.save(folder / "model.safetensors", every)
        return folder
    names, weight_map = list(every), {}
    for shard, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), start=1):
        file = f"model-{shard:05}-of-000002.safetensors"
        tensor_file.save(folder / file, {name: every[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(x.nbytes for x in every.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def digest(folder):
    """SHA-256 of the weight files, as 32 bytes."""
    sha = hashlib.sha256()
    for file in sorted(Path(folder).glob("*.safetensors")):
        sha.update(file.read_bytes())
    return np.frombuffer(sha.digest(), np.uint8)
