"""The model as plain eager PyTorch, in bf16 or fp64: the run that bf16_reference.py emulates, for machines with PyTorch.

python -m oracle.torch_bf16 CONFIG_DIR OUT.json [--seeds 1 2] [--tokens 320 640]: makes seeded checkpoints of the configs and
writes the relative L2 error of the logits against the fp64 oracle, of this program and of its numpy emulation.
"""

import argparse
import json
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from . import bf16_reference, config as configs, model, seeded
from .checkpoint import Checkpoint
from .trace import Trace


class Runner:
    def __init__(self, folder, dtype, device):
        self.config = configs.load(folder)
        self.file = Checkpoint(folder, self.config.prefix)
        self.dtype, self.device = dtype, device
        self.wide = torch.float32 if dtype == torch.bfloat16 else dtype  # of what eager code keeps in fp32

    def weight(self, name):
        """Parameters that the file keeps in fp32 stay so; everything else has the model's dtype."""
        entry = self.file.entries.get(self.config.prefix + name, (None, {"dtype": "U8"}))[1]
        dtype = self.wide if entry["dtype"] == "F32" else self.dtype
        return torch.from_numpy(self.file(name).copy()).to(self.device, dtype)

    def under(self, scope):
        return lambda name: self.weight(f"{scope}.{name}")

    def rms_norm(self, x, weight):
        y = x.to(self.wide)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.config.eps)
        return weight * y.to(x.dtype)

    def glu(self, gate, up):
        if not self.config.situ:
            return F.silu(gate) * up
        beta, linear_beta = self.config.situ_beta, self.config.situ_linear_beta
        g, u = gate.to(self.wide), up.to(self.wide)
        return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear_beta * torch.tanh(u / linear_beta))).to(gate)

    def mlp(self, x, w):
        hidden = self.glu(F.linear(x, w("gate_proj.weight")), F.linear(x, w("up_proj.weight")))
        return F.linear(hidden, w("down_proj.weight"))

    def kda(self, h, w):
        c, wide = self.config, self.wide
        by_head = (len(h), c.kda_heads, c.kda_dim)

        def branch(name):
            taps = w(f"{name}_conv1d.weight")
            x = F.linear(h, w(f"{name}_proj.weight")).T[None].to(taps.dtype)
            x = F.conv1d(x, taps, padding=taps.shape[-1] - 1, groups=len(taps))[..., : len(h)]
            return F.silu(x)[0].T.to(self.dtype).reshape(by_head).to(wide)

        def l2_norm(x):
            return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)

        q, k, v = l2_norm(branch("q")) * c.kda_dim**-0.5, l2_norm(branch("k")), branch("v")
        u = F.linear(F.linear(h, w("f_a_proj.weight")), w("f_b_proj.weight")).to(wide) + w("dt_bias").to(wide).flatten()
        rate = torch.exp(w("A_log").to(wide).flatten()[: c.kda_heads])[:, None]
        u = u.reshape(by_head)
        if c.gate_lower_bound is not None:
            g = c.gate_lower_bound * torch.sigmoid(rate * u)
        else:
            g = -rate * F.softplus(u)
        beta = torch.sigmoid(F.linear(h, w("b_proj.weight"))).to(wide)
        state = torch.zeros(c.kda_heads, c.kda_dim, c.kda_dim, dtype=wide, device=self.device)
        out = []
        for t in range(len(h)):
            state = state * g[t].exp()[..., None]
            delta = beta[t][:, None] * (v[t] - (k[t][:, None] @ state)[:, 0])
            state = state + k[t][..., None] * delta[:, None]
            out.append((q[t][:, None] @ state)[:, 0])
        out = torch.stack(out).to(self.dtype).to(wide)
        if c.full_rank_gate:
            gate = F.linear(h, w("g_proj.weight"))
        else:
            gate = F.linear(F.linear(h, w("g_a_proj.weight")), w("g_b_proj.weight"))
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + c.eps) * w("o_norm.weight").to(wide)
        out = out.reshape(len(h), -1) * torch.sigmoid(gate.to(wide))
        return F.linear(out.to(self.dtype), w("o_proj.weight"))

    def mla(self, h, w, selected):
        c, tokens = self.config, len(h)
        if c.q_lora:
            cq = self.rms_norm(F.linear(h, w("q_a_proj.weight")), w("q_a_layernorm.weight"))
            q = F.linear(cq, w("q_b_proj.weight"))
        else:
            q = F.linear(h, w("q_proj.weight"))
        q = q.reshape(tokens, c.heads, -1).transpose(0, 1)
        latent, k_shared = F.linear(h, w("kv_a_proj_with_mqa.weight")).split([c.kv_lora, c.rope], -1)
        kv = F.linear(self.rms_norm(latent, w("kv_a_layernorm.weight")), w("kv_b_proj.weight"))
        k_nope, v = kv.reshape(tokens, c.heads, -1).transpose(0, 1).split([c.nope, c.v_dim], -1)
        k = torch.cat([k_nope, k_shared.expand(c.heads, -1, -1)], -1)
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=self.device).tril()
        if selected is not None:
            index = torch.from_numpy(np.where(selected < 0, tokens, selected)).long().to(self.device)
            allowed = torch.zeros(tokens, tokens + 1, dtype=torch.bool, device=self.device).scatter_(1, index, True)
            mask &= allowed[:, :tokens]
        logits = (q @ k.transpose(1, 2) * (c.nope + c.rope) ** -0.5).masked_fill(~mask, float("-inf"))
        p = torch.softmax(logits, -1, dtype=self.wide).to(self.dtype)
        out = (p @ v).transpose(0, 1).reshape(tokens, -1)
        if c.output_gate:
            out = out * torch.sigmoid(F.linear(h, w("g_proj.weight")))
        return F.linear(out, w("o_proj.weight"))

    def moe(self, h, w, experts):
        c, wide = self.config, self.wide
        index = torch.from_numpy(experts).long().to(self.device)
        scores = torch.sigmoid(F.linear(h.to(wide), w("gate.weight").to(wide)))
        weights = scores.gather(1, index)
        if c.renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * c.scaling
        z = F.linear(h, w("routed_expert_down_proj.weight")) if c.latent else h
        y = torch.zeros_like(z, dtype=wide)
        for e in np.unique(experts):
            row, slot = torch.where(index == int(e))
            gate, up = (F.linear(z[row], w(f"experts.{e}.{name}.weight")) for name in ("w1", "w3"))
            out = F.linear(self.glu(gate, up), w(f"experts.{e}.w2.weight"))
            y[row] += weights[row, slot, None] * out.to(wide)
        y = y.to(self.dtype)
        if c.latent:
            if c.latent_norm:
                y = self.rms_norm(y, w("routed_expert_norm.weight"))
            y = F.linear(y, w("routed_expert_up_proj.weight"))
        return y + self.mlp(h, lambda name: w(f"shared_experts.{name}")) if c.shared_experts else y

    def res_mix(self, banks, stream, scope):
        if not banks or not self.config.res_block:
            return stream
        sources = torch.stack([*banks, stream], 1).to(self.wide)
        folded = self.weight(f"{scope}_norm.weight").to(self.wide) * self.weight(f"{scope}_proj.weight").to(self.wide)[0]
        score = (sources @ folded) * torch.rsqrt(sources.pow(2).mean(-1) + self.config.eps)
        return (torch.softmax(score, -1)[..., None] * sources).sum(1).to(self.dtype)

    @torch.no_grad()
    def logits(self, tokens, given):
        """given: a Trace; its selected keys and experts are used."""
        c = self.config
        stream, banks = self.weight("model.embed_tokens.weight")[torch.as_tensor(tokens).to(self.device)], []
        for i in range(c.layers):
            scope = f"model.layers.{i}"
            h = self.res_mix(banks, stream, f"{scope}.self_attention_res")
            h = self.rms_norm(h, self.weight(f"{scope}.input_layernorm.weight"))
            restart = c.res_block and i % c.res_block == 0
            if restart:
                banks.append(stream)
            w = self.under(f"{scope}.self_attn")
            a = self.kda(h, w) if c.is_kda(i) else self.mla(h, w, given.selected.get(i))
            stream = a if restart else stream + a
            h = self.res_mix(banks, stream, f"{scope}.mlp_res")
            h = self.rms_norm(h, self.weight(f"{scope}.post_attention_layernorm.weight"))
            if c.is_moe(i):
                stream = stream + self.moe(h, self.under(f"{scope}.block_sparse_moe"), given.experts[i])
            else:
                stream = stream + self.mlp(h, self.under(f"{scope}.mlp"))
        h = self.rms_norm(self.res_mix(banks, stream, "model.output_attn_res"), self.weight("model.norm.weight"))
        return F.linear(h, self.weight("lm_head.weight")).to(torch.float64).cpu().numpy()


def measure(config_file, seed, count, device):
    with tempfile.TemporaryDirectory() as folder:
        seeded.make(config_file, folder, seed)
        config = configs.load(folder)
        tokens = seeded.tokens(seed, count, config.vocab)
        own = bf16_reference.run(folder, tokens, fp8_index=True)
        given = Trace(selected=own.selected, experts=own.experts)
        exact = model.run(folder, tokens, given).logits

        def error(logits):
            return float(np.linalg.norm(logits - exact) / np.linalg.norm(exact))

        return {
            "config": Path(config_file).name,
            "seed": seed,
            "tokens": count,
            "torch_bf16": error(Runner(folder, torch.bfloat16, device).logits(tokens, given)),
            "numpy_bf16_reference": error(own.logits.astype(np.float64)),
            "torch_fp64": error(Runner(folder, torch.float64, device).logits(tokens, given)),
        }


def main():
    parser = argparse.ArgumentParser(prog="oracle.torch_bf16", description=__doc__)
    parser.add_argument("configs")
    parser.add_argument("out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, nargs="+", default=[320, 640])
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files = sorted(Path(args.configs).glob("*.json"))
    work = [(file, seed, count, device) for file in files for seed in args.seeds for count in args.tokens]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        rows = pool.starmap(measure, work, chunksize=1)
    for row in rows:
        print(row)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    report = {"device": name, "torch": torch.__version__, "relative_l2_error_of_logits": rows}
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
