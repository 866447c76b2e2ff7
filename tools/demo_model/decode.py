"""Free-running greedy decoding, one token a step for many sequences at once: recurrent KDA, absorbed sparse MLA.

It shares no attention code with training, so its scores also check that the chunked and the recurrent forms agree.
"""
import torch
import torch.nn.functional as F

import kda
import latents
import regions as r
from parameters import is_kda, kPrefix, layer_prefix


class Decoder:
    def __init__(self, text, weights, top_k=None, random_keys=False, latent_format="bf16"):
        """random_keys: a negative control, top_k keys by chance instead of by the indexer."""
        self.random_keys, self.latent_format = random_keys, latents.kFormats.index(latent_format)
        self.text, self.w = text, {k: v.detach() for k, v in weights.items()}
        self.top_k = top_k or text["dsa_config"]["top_k"]

    def start(self, sequences, longest):
        t, any_weight = self.text, next(iter(self.w.values()))
        kd, zeros = t["linear_attn_config"], lambda *s, **k: torch.zeros(*s, device=any_weight.device, **k)
        heads, dim = kd["num_heads"], kd["head_dim"]
        self.state = []
        for i in range(t["num_hidden_layers"]):
            if is_kda(t, i):
                self.state.append({"s": zeros(sequences, heads, dim, dim), "conv": zeros(3, sequences, 4, heads * dim)})
            else:
                self.state.append({"c": zeros(sequences, longest, t["kv_lora_rank"], dtype=torch.bfloat16),
                                   "pe": zeros(sequences, longest, t["qk_rope_head_dim"], dtype=torch.bfloat16),
                                   "ik": zeros(sequences, longest, t["dsa_config"]["head_dim"], dtype=torch.bfloat16)})

    def _kda(self, h, a, s):
        w, kd = self.w, self.text["linear_attn_config"]
        heads, dim = kd["num_heads"], kd["head_dim"]
        parts = []
        for j, name in enumerate("qkv"):
            s["conv"][j] = torch.cat([s["conv"][j][:, 1:], F.linear(h, w[f"{a}{name}_proj.weight"]).float().unsqueeze(1)], 1)
            x = F.silu((s["conv"][j] * w[f"{a}{name}_conv1d.weight"][:, 0].t()).sum(1)).view(-1, heads, dim)
            parts.append(x if name == "v" else x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6))
        q, k, v = (x.bfloat16().float() for x in parts)
        u = F.linear(F.linear(h, w[a + "f_a_proj.weight"]), w[a + "f_b_proj.weight"]).float() + w[a + "dt_bias"]
        g = -5.0 * torch.sigmoid(w[a + "A_log"].exp().unsqueeze(-1) * u.view(-1, heads, dim))
        beta = torch.sigmoid(F.linear(h, w[a + "b_proj.weight"]).float())
        o, s["s"] = kda.recurrent_step(s["s"], q * dim ** -0.5, k, v, g, beta)
        o = o.bfloat16().float()
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + r.kEps) * w[a + "o_norm.weight"]
        gate = torch.sigmoid(F.linear(h, w[a + "g_proj.weight"]).float())
        return F.linear((o.flatten(1) * gate).bfloat16(), w[a + "o_proj.weight"])

    def _mla(self, h, a, s, at):
        w, t = self.w, self.text
        heads, nope, rank, dsa = t["num_attention_heads"], t["qk_nope_head_dim"], t["kv_lora_rank"], t["dsa_config"]
        cq = r.rms(F.linear(h, w[a + "q_a_proj.weight"]), w[a + "q_a_layernorm.weight"])
        q = F.linear(cq, w[a + "q_b_proj.weight"]).view(h.shape[0], heads, -1)
        c, pe = F.linear(h, w[a + "kv_a_proj_with_mqa.weight"]).split([rank, t["qk_rope_head_dim"]], -1)
        code = torch.full((h.shape[0],), self.latent_format, device=h.device)
        s["c"][:, at], s["pe"][:, at] = latents.stored(r.rms_f32(c, w[a + "kv_a_layernorm.weight"]), pe, code)
        x = a + "indexer."
        norm = w[x + "k_norm.weight"].float()
        s["ik"][:, at] = F.layer_norm(F.linear(h, w[x + "wk.weight"]).float(), norm.shape, norm, w[x + "k_norm.bias"].float(),
                                      r.kEps).bfloat16()
        c, pe = s["c"][:, :at + 1], s["pe"][:, :at + 1]
        kv_b = w[a + "kv_b_proj.weight"].view(heads, -1, rank)
        absorbed = torch.einsum("bhn,hnc->bhc", q[..., :nope], kv_b[:, :nope])
        score = (torch.einsum("bhc,blc->bhl", absorbed, c) + torch.einsum("bhp,blp->bhl", q[..., nope:], pe)).float()
        score = score * (nope + pe.shape[-1]) ** -0.5
        if at + 1 > self.top_k:
            iq = F.linear(cq, w[x + "wq_b.weight"]).view(h.shape[0], 1, dsa["num_heads"], -1)
            iw = F.linear(h, w[x + "weights_proj.weight"]).float().unsqueeze(1)
            index = r.index_scores(iq, s["ik"][:, :at + 1], iw)[:, 0].bfloat16().float()
            if self.random_keys:
                index = torch.rand_like(index)
            keep = torch.zeros_like(index, dtype=torch.bool).scatter_(1, index.topk(self.top_k, -1).indices, True)
            score = score.masked_fill(~keep.unsqueeze(1), -torch.inf)
        z = torch.einsum("bhl,blc->bhc", torch.softmax(score, -1).bfloat16(), c)
        o = torch.einsum("bhc,hvc->bhv", z, kv_b[:, nope:]).flatten(1).float()
        return F.linear((o * torch.sigmoid(F.linear(h, w[a + "g_proj.weight"]).float())).bfloat16(), w[a + "o_proj.weight"])

    def _mlp(self, h, p):
        w = self.w
        return F.linear(r.situ(F.linear(h, w[p + "gate_proj.weight"]), F.linear(h, w[p + "up_proj.weight"])), w[p + "down_proj.weight"])

    def _moe(self, h, b):
        w = self.w
        score = torch.sigmoid(F.linear(h.float(), w[b + "gate.weight"].float()))
        chosen = torch.topk(score + w[b + "gate.e_score_correction_bias"], self.text["num_experts_per_token"], -1).indices
        weight = score.gather(-1, chosen)
        weight = torch.zeros_like(score).scatter_(1, chosen, weight / (weight.sum(-1, keepdim=True) + 1e-20))
        z = F.linear(h, w[b + "routed_expert_down_proj.weight"])
        gate, up = (torch.einsum("bz,efz->ebf", z, w[f"{b}experts.{n}"]) for n in ("w1", "w3"))
        y = torch.einsum("ebf,ezf->ebz", r.situ(gate, up), w[b + "experts.w2"]).float()
        y = r.rms((y * weight.t().unsqueeze(-1)).sum(0).bfloat16(), w[b + "routed_expert_norm.weight"])
        return F.linear(y, w[b + "routed_expert_up_proj.weight"]) + self._mlp(h, b + "shared_experts.")

    def step(self, ids, at):
        """Logits f32 of the next token, after the tokens ids [B] at position at."""
        w, t, m = self.w, self.text, kPrefix + "model."
        stream, banks = F.embedding(ids, w[m + "embed_tokens.weight"]), []

        def read(name, norm):
            return r.rms(r.mix([*banks, stream], w[name + "_norm.weight"], w[name + "_proj.weight"]), w[norm])

        for i in range(t["num_hidden_layers"]):
            p = layer_prefix(i)
            h = read(p + "self_attention_res", p + "input_layernorm.weight")
            restart = i % t["attn_res_block_size"] == 0
            if restart:
                banks.append(stream)
            a = p + "self_attn."
            delta = self._kda(h, a, self.state[i]) if is_kda(t, i) else self._mla(h, a, self.state[i], at)
            stream = delta if restart else stream + delta
            h = read(p + "mlp_res", p + "post_attention_layernorm.weight")
            stream = stream + (self._mlp(h, p + "mlp.") if i < t["first_k_dense_replace"] else self._moe(h, p + "block_sparse_moe."))
        return F.linear(read(m + "output_attn_res", m + "norm.weight"), w[kPrefix + "lm_head.weight"]).float()

    @torch.inference_mode()
    def greedy(self, prompts, limits, stop):
        """Lists of generated ids (without the stop id) for prompts of any lengths, in lockstep."""
        device = next(iter(self.w.values())).device
        longest = max(len(p) + n for p, n in zip(prompts, limits))
        self.start(len(prompts), longest)
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        ends = lengths + torch.tensor(limits, device=device)
        ids = torch.full((len(prompts), longest + 1), stop, device=device)
        for i, p in enumerate(prompts):
            ids[i, :len(p)] = torch.tensor(p, device=device)
        running = torch.ones(len(prompts), dtype=torch.bool, device=device)
        for at in range(longest):
            best = self.step(ids[:, at], at).argmax(-1)
            free = at + 1 >= lengths
            ids[:, at + 1] = torch.where(free, torch.where(running, best, stop), ids[:, at + 1])
            running &= ~(free & (best == stop)) & (at + 1 < ends)
            if at % 16 == 0 and not running.any():
                break
        out = []
        for row, p, n in zip(ids.tolist(), prompts, limits):
            answer = row[len(p):len(p) + n]
            out.append(answer[:answer.index(stop)] if stop in answer else answer)
        return out
