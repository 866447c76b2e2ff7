"""Muon for the matrices, AdamW for the rest, with fp32 masters; every step is device work alone, so it can be captured.

Matrices of one shape are stacked and orthogonalised together. The experts' stored values can be their MXFP4 rounding:
the gradient taken there moves the master (quantisation-aware training).
"""
import torch

import mxfp4

kAdamEnds = ("embed_tokens.weight", "lm_head.weight", "block_sparse_moe.gate.weight", "conv1d.weight", "self_attn.b_proj.weight",
             "indexer.weights_proj.weight", "_res_proj.weight")
kNewtonSchulz = (3.4445, -4.7750, 2.0315)


def is_muon(name, shape):
    return len(shape) >= 2 and not name.endswith(kAdamEnds)


class _Group:
    """All matrices of one shape, wide side last."""

    def __init__(self, rows, columns):
        self.rows, self.columns, self.members, self.count = rows, columns, [], 0

    def add(self, name, shape):
        flip = shape[-2] > shape[-1]
        n = shape[0] if len(shape) == 3 else 1
        self.members.append((name, shape, flip, self.count, n))
        self.count += n

    def view(self, stack, member):
        _, shape, flip, start, n = member
        part = stack[start:start + n]
        return (part.transpose(1, 2) if flip else part).view(shape) if len(shape) == 3 or not flip else part[0].t()


class Optimiser:
    def __init__(self, start, weights, roster, device):
        """start: fp32 values; weights: stored tensors, overwritten after every step."""
        self.weights, self.groups, self.adam_names = weights, {}, []
        for name, (shape, _, _) in roster.items():
            if name.endswith("e_score_correction_bias"):
                continue
            if is_muon(name, shape):
                key = (min(shape[-2:]), max(shape[-2:]))
                self.groups.setdefault(key, _Group(*key)).add(name, shape)
            else:
                self.adam_names.append(name)
        zeros = lambda *s: torch.zeros(*s, device=device)  # noqa: E731
        self.lr = {"muon": zeros(()), "adam": zeros(())}
        self.quantise = False
        self.step_count = zeros(())
        self.master, self.momentum, self.grad = {}, {}, {}
        for key, group in self.groups.items():
            self.master[key] = zeros(group.count, *key)
            self.momentum[key], self.grad[key] = (torch.zeros_like(self.master[key]) for _ in range(2))
            for member in group.members:
                group.view(self.master[key], member).copy_(start[member[0]])
        sizes = [start[n].numel() for n in self.adam_names]
        self.flat, self.first, self.second, self.flat_grad = (zeros(sum(sizes)) for _ in range(4))
        self.flat_views = [p.view(start[n].shape) for n, p in zip(self.adam_names, self.flat.split(sizes))]
        self.grad_views = [p.view(start[n].shape) for n, p in zip(self.adam_names, self.flat_grad.split(sizes))]
        torch._foreach_copy_(self.flat_views, [start[n] for n in self.adam_names])
        self.publish()

    def state(self):
        return {"master": self.master, "momentum": self.momentum, "flat": self.flat, "first": self.first, "second": self.second,
                "step": self.step_count}

    def load(self, state):
        for key in self.master:
            self.master[key].copy_(state["master"][key])
            self.momentum[key].copy_(state["momentum"][key])
        for mine, theirs in ((self.flat, "flat"), (self.first, "first"), (self.second, "second"), (self.step_count, "step")):
            mine.copy_(state[theirs])
        self.publish()

    def _grad_of(self, name):
        grad = self.weights[name].grad
        return torch.zeros_like(self.weights[name]) if grad is None else grad

    @torch.no_grad()
    def step(self):
        self.step_count += 1
        for key, group in self.groups.items():
            torch._foreach_copy_([group.view(self.grad[key], m) for m in group.members], [self._grad_of(m[0]) for m in group.members])
            momentum, grad, master = self.momentum[key], self.grad[key], self.master[key]
            momentum.lerp_(grad, 0.05)
            update = _orthogonal(grad.lerp(momentum, 0.95))
            master.mul_(1 - 0.02 * self.lr["muon"])
            master.sub_(update.float() * (self.lr["muon"] * (0.2 * key[1] ** 0.5)))
        torch._foreach_copy_(self.grad_views, [self._grad_of(n) for n in self.adam_names])
        g = self.flat_grad
        g.mul_((1.0 / (g.norm() + 1e-6)).clamp(max=1.0))
        self.first.lerp_(g, 0.1)
        self.second.lerp_(g.square(), 0.05)
        first = self.first / (1 - 0.9 ** self.step_count)
        second = self.second / (1 - 0.95 ** self.step_count)
        self.flat.sub_(self.lr["adam"] * first / (second.sqrt() + 1e-8))
        self.publish()

    @torch.no_grad()
    def publish(self):
        """Writes the masters, rounded, into the stored tensors."""
        for key, group in self.groups.items():
            torch._foreach_copy_([self.weights[m[0]] for m in group.members],
                                 [mxfp4.fake_quantise(group.view(self.master[key], m)) if self.quantise and ".experts." in m[0]
                                  else group.view(self.master[key], m) for m in group.members])
        torch._foreach_copy_([self.weights[n] for n in self.adam_names], self.flat_views)


def _orthogonal(g):
    """Newton-Schulz towards the nearest semi-orthogonal matrix, batched, in bf16."""
    a, b, c = kNewtonSchulz
    x = g.bfloat16() if g.is_cuda else g
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a, alpha=1.0)
    return x
