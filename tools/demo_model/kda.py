"""Kimi delta attention over packed documents: the fused chunk kernels on a GPU, the plain recurrence elsewhere."""
import sys

import torch

# One launch configuration a kernel, so that the library's autotuner (minutes of compiles) never runs: (constants, warps, stages).
kConfigs = {
    "chunk_kda_fwd_kernel_intra_sub_chunk": ({}, 1, 3),
    "chunk_kda_fwd_kernel_inter_solve_fused": ({"BK": 32}, 1, 3),
    "recompute_w_u_fwd_kda_kernel": ({}, 4, 3),
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": ({"BV": 64}, 4, 2),
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64": ({"BV": 64}, 4, 2),
    "chunk_gla_fwd_kernel_o": ({"BK": 64, "BV": 64}, 4, 3),
    "chunk_kda_bwd_kernel_dAv": ({}, 4, 3),
    "chunk_kda_bwd_kernel_wy_dqkg_fused": ({"BK": 64, "BV": 64}, 4, 2),
    "chunk_kda_bwd_kernel_intra": ({}, 2, 3),
    "chunk_local_cumsum_vector_kernel": ({"BS": 64}, 4, 3),
    "kda_gate_chunk_cumsum_vector_kernel": ({"BS": 64}, 4, 3),
}


def _pin_configs():
    import triton
    from triton.runtime.autotuner import Autotuner
    for module in [m for name, m in list(sys.modules.items()) if name.startswith("fla.")]:
        for kernel in list(vars(module).values()):
            while kernel is not None and hasattr(kernel, "fn"):
                if isinstance(kernel, Autotuner):
                    name = getattr(kernel.base_fn, "__name__", "")
                    if name in kConfigs:
                        constants, warps, stages = kConfigs[name]
                        kernel.configs = [triton.Config(constants, num_warps=warps, num_stages=stages)]
                    elif len(kernel.configs) > 1:
                        kernel.configs = kernel.configs[:1]
                kernel = kernel.fn


def load():
    """The packed chunk operator, or None where it cannot run."""
    if not torch.cuda.is_available():
        return None
    try:
        from fla.ops.kda import chunk_kda
    except ImportError:
        print("flash-linear-attention is missing: the plain recurrence is hundreds of times slower")
        return None
    _pin_configs()
    return chunk_kda


def recurrent_step(state, q, k, v, g, beta):
    """One token: state [B,H,K,V] f32, q k v g [B,H,128], beta [B,H] -> (output, state); q already scaled."""
    state = state * g.exp().unsqueeze(-1)
    read = torch.einsum("bhkv,bhk->bhv", state, k)
    state = state + k.unsqueeze(-1) * (beta.unsqueeze(-1) * (v - read)).unsqueeze(-2)
    return torch.einsum("bhkv,bhk->bhv", state, q), state


class Attention:
    """Callable over a packed batch: q k v g [T,H,D], beta [T,H]; q and k normalised, q unscaled."""

    def __init__(self):
        self.chunked = load()

    def __call__(self, q, k, v, g, beta, batch):
        if self.chunked:
            o, _ = self.chunked(q[None], k[None], v[None], g[None], beta[None], cu_seqlens=batch["cu_seqlens_long"], safe_gate=True,
                                use_graph=True)
            return o[0]
        out, state = [], None
        inputs = (q.float() * q.shape[-1] ** -0.5, k.float(), v.float(), g, beta.float())
        for position, *token in zip(batch["position"].tolist(), *(x.split(1) for x in inputs)):
            if position == 0:
                state = torch.zeros(1, q.shape[1], q.shape[2], v.shape[2], device=q.device)
            o, state = recurrent_step(state, *token)
            out.append(o.to(v.dtype))
        return torch.cat(out)
