"""The training forward of K3.1 over a packed batch of rows, with the indexer's loss, dense or sparse attention."""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kda
import latents
import regions as r
from parameters import is_kda, kPrefix, layer_prefix


class Permute(torch.autograd.Function):
    """Rows in another order; the backward is a gather too."""

    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.saved_tensors[0]], None, None


class Model:
    """weights: name -> tensor as stored. batch: see data.py."""

    def __init__(self, text, weights):
        self.text, self.w = text, weights
        self.attention = kda.Attention()
        self.loads = {}  # layer -> tokens of each expert in the last batch
        self.selection = None  # for scores: (keys that each query reads, chosen by chance?)

    def _kda(self, h, a, batch):
        w, heads = self.w, self.text["linear_attn_config"]["num_heads"]
        q, k, v, g, beta = r.kda_in(
            h, w[a + "q_proj.weight"], w[a + "k_proj.weight"], w[a + "v_proj.weight"], w[a + "q_conv1d.weight"],
            w[a + "k_conv1d.weight"], w[a + "v_conv1d.weight"], w[a + "f_a_proj.weight"], w[a + "f_b_proj.weight"],
            w[a + "b_proj.weight"], w[a + "A_log"], w[a + "dt_bias"], batch["position"], heads)
        o = self.attention(q, k, v, g, beta, batch)
        return r.kda_out(o, h, w[a + "g_proj.weight"], w[a + "o_norm.weight"], w[a + "o_proj.weight"])

    def _mla(self, h, a, batch, sparse):
        w, t = self.w, self.text
        heads, nope, vd, dsa = t["num_attention_heads"], t["qk_nope_head_dim"], t["v_head_dim"], t["dsa_config"]
        cq, q, c, pe = r.mla_in(h, w[a + "q_a_proj.weight"], w[a + "q_a_layernorm.weight"], w[a + "q_b_proj.weight"],
                                w[a + "kv_a_proj_with_mqa.weight"], w[a + "kv_a_layernorm.weight"], heads, t["kv_lora_rank"])
        c, pe = latents.stored(c, pe, batch["latents"])
        k, v = r.mla_expand(c, pe, w[a + "kv_b_proj.weight"], heads, nope)
        x = a + "indexer."
        iq, ik, iw = r.index_in(h.detach(), cq.detach(), w[x + "wq_b.weight"], w[x + "wk.weight"], w[x + "weights_proj.weight"],
                                w[x + "k_norm.weight"], w[x + "k_norm.bias"], dsa["num_heads"])
        rows, length = batch["rows"], h.shape[0] // batch["rows"]
        iq, ik, iw = (y.unflatten(0, (rows, length)) for y in (iq, ik, iw))
        kl = self._divergence(q, k, iq, ik, iw, batch)
        if self.selection:
            o = self._blocks(q, k, v, iq, ik, iw, batch)
        elif sparse or not q.is_cuda:
            mask = self._selected(iq, ik, iw, batch, dsa["top_k"] if sparse else length)
            split = [y.unflatten(0, (rows, length)).transpose(1, 2) for y in (q, k, v)]
            with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                o = F.scaled_dot_product_attention(*split, attn_mask=mask[:, None]).transpose(1, 2).flatten(0, 1)
        else:
            from torch.nn.attention.varlen import varlen_attn
            o = varlen_attn(q, k, v, batch["cu_seqlens"], batch["cu_seqlens"], length, length, window_size=(-1, 0))
        return r.mla_out(o[..., :vd].contiguous(), h, w[a + "g_proj.weight"], w[a + "o_proj.weight"]), kl

    def _allowed(self, batch, queries):
        """[R,S,L]: keys of the query's own document, not after it. queries: [R,S] positions in the row."""
        document = batch["document"].view(batch["rows"], -1)
        keys = torch.arange(document.shape[1], device=document.device)
        return (document.gather(1, queries).unsqueeze(-1) == document.unsqueeze(1)) & (keys <= queries.unsqueeze(-1))

    def _divergence(self, q, k, iq, ik, iw, batch):
        sampled, rows = batch["sampled"], batch["rows"]
        at = torch.arange(rows, device=q.device).unsqueeze(1)
        q, k = (y.detach().unflatten(0, (rows, -1)) for y in (q, k))
        return r.index_divergence(q[at, sampled], k, iq[at, sampled], ik, iw[at, sampled], self._allowed(batch, sampled))

    @torch.no_grad()
    def _selected(self, iq, ik, iw, batch, top):
        rows, length = iq.shape[:2]
        out = torch.zeros(rows, length, length, dtype=torch.bool, device=iq.device)
        for row in range(rows):
            queries = torch.arange(length, device=iq.device).unsqueeze(0)
            allowed = self._allowed({"document": batch["document"].view(rows, length)[row], "rows": 1}, queries)[0]
            if top >= length:
                out[row] = allowed
                continue
            score = r.index_scores(iq[row:row + 1], ik[row:row + 1], iw[row:row + 1])[0].bfloat16().float()
            best = torch.topk(score.masked_fill(~allowed, -torch.inf), top, dim=-1).indices
            out[row] = torch.zeros_like(allowed).scatter_(1, best, True) & allowed
        return out

    @torch.no_grad()
    def _blocks(self, q, k, v, iq, ik, iw, batch, size=2048):
        """Sparse attention of any length, a block of queries at a time."""
        (top, by_chance), (rows, length) = self.selection, iq.shape[:2]
        q, k, v = (y.unflatten(0, (rows, length)).transpose(1, 2) for y in (q, k, v))
        out = torch.empty_like(v)
        for row in range(rows):
            one = {"document": batch["document"].view(rows, length)[row], "rows": 1}
            for at in range(0, length, size):
                here = slice(at, min(length, at + size))
                mask = self._allowed(one, torch.arange(here.start, here.stop, device=q.device)[None])[0]
                if top < length:
                    score = torch.rand(mask.shape, device=q.device) if by_chance else r.index_scores(
                        iq[row:row + 1, here], ik[row:row + 1], iw[row:row + 1, here])[0].bfloat16().float()
                    best = torch.topk(score.masked_fill(~mask, -torch.inf), top, dim=-1).indices
                    mask = torch.zeros_like(mask).scatter_(1, best, True) & mask
                with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                    out[row, :, here] = F.scaled_dot_product_attention(q[row:row + 1, :, here], k[row:row + 1], v[row:row + 1],
                                                                       attn_mask=mask[None, None])[0]
        return out.transpose(1, 2).flatten(0, 1)

    def _moe(self, h, b, batch, layer):
        w, t = self.w, self.text
        top, experts = t["num_experts_per_token"], t["num_experts"]
        chosen, weight, self.loads[layer] = r.route(h, w[b + "gate.weight"], w[b + "gate.e_score_correction_bias"], batch["valid"], top)
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=h.device))
        ends = torch.searchsorted(flat[order], torch.arange(experts, device=h.device), right=True).int()
        z = F.linear(h, w[b + "routed_expert_down_proj.weight"])
        x = Permute.apply(z.unsqueeze(1).expand(-1, top, -1).reshape(-1, z.shape[-1]), order, inverse)
        up = r.gated(*(torch._grouped_mm(x, w[f"{b}experts.{n}"].transpose(1, 2), offs=ends) for n in ("w1", "w3")))
        y = Permute.apply(torch._grouped_mm(up, w[b + "experts.w2"].transpose(1, 2), offs=ends), inverse, order)
        s = b + "shared_experts."
        shared = r.mlp(h, w[s + "gate_proj.weight"], w[s + "up_proj.weight"], w[s + "down_proj.weight"])
        return r.moe_out(y.view(-1, top, y.shape[-1]), weight, w[b + "routed_expert_norm.weight"],
                         w[b + "routed_expert_up_proj.weight"], shared)

    def forward(self, batch, sparse):
        """(loss to minimise, answer loss, answer accuracy, index divergences)"""
        x, divergences = self.hidden(batch, sparse)
        loss, answer, correct = r.token_loss(x, self.w[kPrefix + "lm_head.weight"], batch["target"], batch["weight"])
        kl = torch.stack(divergences)
        return loss + kl.sum(), answer.detach(), correct.detach(), kl.detach()

    def hidden(self, batch, sparse):
        """(what the head reads [tokens, d], index divergence of each MLA layer)"""
        w, t, m = self.w, self.text, kPrefix + "model."
        stream, banks, divergences = F.embedding(batch["ids"], w[m + "embed_tokens.weight"]), [], []
        x = r.norm_only(stream, w[layer_prefix(0) + "input_layernorm.weight"])
        for i in range(t["num_hidden_layers"]):
            p = layer_prefix(i)
            if i % t["attn_res_block_size"] == 0:
                banks.append(stream)
                stream = None
            if is_kda(t, i):
                delta = self._kda(x, p + "self_attn.", batch)
            else:
                delta, kl = self._mla(x, p + "self_attn.", batch, sparse)
                divergences.append(kl)
            stream, y = r.add_mix_norm(stream, delta, banks, w[p + "mlp_res_norm.weight"], w[p + "mlp_res_proj.weight"],
                                       w[p + "post_attention_layernorm.weight"])
            if i < t["first_k_dense_replace"]:
                s = p + "mlp."
                delta = r.mlp(y, w[s + "gate_proj.weight"], w[s + "up_proj.weight"], w[s + "down_proj.weight"])
            else:
                delta = self._moe(y, p + "block_sparse_moe.", batch, i)
            last = i + 1 == t["num_hidden_layers"]
            n = m + "output_attn_res" if last else layer_prefix(i + 1) + "self_attention_res"
            stream, x = r.add_mix_norm(stream, delta, banks, w[n + "_norm.weight"], w[n + "_proj.weight"],
                                       w[m + "norm.weight" if last else layer_prefix(i + 1) + "input_layernorm.weight"])
        return x, divergences
