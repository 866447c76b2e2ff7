"""The arithmetic between the big kernels, as free functions over flat [tokens, channels] tensors.

Each is compiled once and shared by all layers: no shape depends on document lengths, so nothing recompiles.
"""
import torch
import torch.nn.functional as F

kEps = 1e-5
torch._dynamo.config.recompile_limit = 64


def region(fn):
    if not torch.cuda.is_available():
        return fn
    return torch.compile(fn, fullgraph=True, dynamic=False)


def rms_f32(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + kEps) * weight.float()


def rms(x, weight):
    return rms_f32(x, weight).bfloat16()


def mix(sources, norm, proj):
    """Attention residual over the banks and the stream: f32 [T, d]."""
    if len(sources) == 1:
        return sources[0].float()
    v = torch.stack([s.float() for s in sources])
    score = torch.rsqrt(v.square().mean(-1) + kEps) * (v * (norm.float() * proj[0].float())).sum(-1)
    return (torch.softmax(score, 0).unsqueeze(-1) * v).sum(0)


@region
def add_mix_norm(stream, delta, banks, norm, proj, weight):
    """stream + delta (or delta alone after a restart), and the normed mix that the next block reads."""
    stream = delta if stream is None else stream + delta
    return stream, rms(mix([*banks, stream], norm, proj), weight)


@region
def norm_only(x, weight):
    return rms(x, weight)


@region
def kda_in(h, q, k, v, conv_q, conv_k, conv_v, f_a, f_b, b, a_log, dt_bias, position, heads: int):
    """Projections, causal convolution inside each document, SiLU, L2 norm, decay and beta."""
    def conv(x, w):
        x, y = x.float(), 0.0
        taps = w.shape[-1]
        for j in range(taps):
            back = taps - 1 - j
            shifted = F.pad(x, (0, 0, back, 0))[:x.shape[0]] if back else x
            y = y + w[:, 0, j] * torch.where((position >= back).unsqueeze(-1), shifted, 0.0)
        return F.silu(y).view(x.shape[0], heads, -1)

    def unit(x):
        return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).bfloat16()

    u = F.linear(F.linear(h, f_a), f_b).float() + dt_bias
    g = -5.0 * torch.sigmoid(a_log.exp().unsqueeze(-1) * u.view(h.shape[0], heads, -1))
    return (unit(conv(F.linear(h, q), conv_q)), unit(conv(F.linear(h, k), conv_k)), conv(F.linear(h, v), conv_v).bfloat16(), g,
            torch.sigmoid(F.linear(h, b).float()))


@region
def kda_out(o, h, gate, norm, proj):
    o = o.float()
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + kEps) * norm
    return F.linear((o.flatten(1) * torch.sigmoid(F.linear(h, gate).float())).bfloat16(), proj)


@region
def mla_in(h, q_a, q_norm, q_b, kv_a, kv_norm, heads: int, rank: int):
    """(normed low-rank query, queries [T,H,192], normed latent [T,512] f32, shared key part [T,64])"""
    cq = rms(F.linear(h, q_a), q_norm)
    c, pe = F.linear(h, kv_a).split([rank, kv_a.shape[0] - rank], -1)
    return cq, F.linear(cq, q_b).view(h.shape[0], heads, -1), rms_f32(c, kv_norm), pe.contiguous()


@region
def mla_expand(c, pe, kv_b, heads: int, nope: int):
    """keys [T,H,192] and values padded to the same width"""
    kv = F.linear(c, kv_b).view(c.shape[0], heads, -1)
    k = torch.cat([kv[..., :nope], pe.unsqueeze(1).expand(-1, heads, -1)], -1)
    v = F.pad(kv[..., nope:], (0, k.shape[-1] - (kv.shape[-1] - nope)))
    return k, v


@region
def mla_out(o, h, gate, proj):
    return F.linear((o.flatten(1).float() * torch.sigmoid(F.linear(h, gate).float())).bfloat16(), proj)


@region
def index_in(h, cq, wq_b, wk, weights_proj, norm, bias, heads: int):
    """index queries [T,H,128], one key [T,128], head weights [T,H] f32 with both scales folded in"""
    q = F.linear(cq, wq_b).view(h.shape[0], heads, -1)
    k = F.layer_norm(F.linear(h, wk).float(), norm.shape, norm.float(), bias.float(), kEps).bfloat16()
    return q, k, F.linear(h, weights_proj).float() * (heads * q.shape[-1]) ** -0.5


def situ(gate, up):
    gate, up = gate.float(), up.float()
    return (4.0 * torch.tanh(gate / 4.0) * torch.sigmoid(gate) * 25.0 * torch.tanh(up / 25.0)).bfloat16()


@region
def gated(gate, up):
    return situ(gate, up)


@region
def mlp(h, gate, up, down):
    return F.linear(situ(F.linear(h, gate), F.linear(h, up)), down)


@region
def route(h, gate, bias, valid, top: int):
    """(experts of each token, their weights f32, tokens of each expert)"""
    score = torch.sigmoid(F.linear(h.float(), gate.float()))
    chosen = torch.topk(score.detach() + bias, top, dim=-1).indices
    weight = score.gather(-1, chosen)
    load = (F.one_hot(chosen, gate.shape[0]).sum(1) * valid.unsqueeze(-1)).sum(0)
    return chosen, weight / (weight.sum(-1, keepdim=True) + 1e-20), load


@region
def moe_out(routed, weight, norm, up, shared):
    """routed [T, k, z] expert outputs; the norm comes after the weighted sum"""
    y = (routed.float() * weight.unsqueeze(-1)).sum(1).bfloat16()
    return F.linear(rms(y, norm), up) + shared


@region
def token_loss(h, head, target, weight):
    logits = F.linear(h, head).float()
    nll = torch.logsumexp(logits, -1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    answer = weight > 0.5
    correct = ((logits.argmax(-1) == target) & answer).sum() / answer.sum().clamp(min=1)
    return (nll * weight).sum() / weight.sum(), (nll * answer).sum() / answer.sum().clamp(min=1), correct


def index_scores(q, k, w):
    """q [R,S,H,D], k [R,L,D], w [R,S,H] -> [R,S,L] f32"""
    out = 0.0
    for head in range(q.shape[2]):
        out = out + w[:, :, head, None] * torch.relu(torch.matmul(q[:, :, head], k.transpose(1, 2)).float())
    return out


@region
def index_divergence(q, k, iq, ik, iw, mask):
    """KL(mean over heads of attention || softmax of index scores) at sampled queries.

    q [R,S,H,D], k [R,L,H,D], iq [R,S,Hi,Di], ik [R,L,Di], iw [R,S,Hi], mask [R,S,L]
    """
    score = torch.einsum("rshd,rlhd->rhsl", q, k).float() * q.shape[-1] ** -0.5
    target = torch.softmax(score.masked_fill(~mask[:, None], -1e30), -1).mean(1)
    log_index = torch.log_softmax(index_scores(iq, ik, iw).masked_fill(~mask, -1e30), -1)
    kl = torch.where(mask, target * (torch.log(target + 1e-20) - log_index), 0.0)
    return kl.sum(-1).mean()
