"""The whole forward pass: tokens in, a Trace out."""

from . import attn_res, config as configs, kda, mla, moe
from .checkpoint import Checkpoint
from .ops import linear, rms_norm
from .trace import Trace


def run(folder, tokens, given=None, overrides=None):
    """given: a Trace whose selected keys and experts are used instead of the model's own.

    overrides: tensor name (without the family's prefix) -> array, used instead of the file's.
    """
    config = configs.load(folder)
    weight = Checkpoint(folder, config.prefix)
    weight.overrides = overrides or {}
    given = given or Trace()
    trace = Trace()

    def res_mix(banks, stream, scope):
        if not config.res_block:
            return stream
        return attn_res.mix(banks, stream, weight(f"{scope}_norm.weight"), weight(f"{scope}_proj.weight"), config.eps)

    stream = weight("model.embed_tokens.weight")[tokens]
    banks = []
    for i in range(config.layers):
        scope = f"model.layers.{i}"
        h = res_mix(banks, stream, f"{scope}.self_attention_res")
        h = rms_norm(h, weight(f"{scope}.input_layernorm.weight"), config.eps)
        restart = config.res_block and i % config.res_block == 0
        if restart:
            banks.append(stream)
        if config.is_kda(i):
            a = kda.layer(h, weight.under(f"{scope}.self_attn"), config)
        else:
            a, index_scores, selected = mla.layer(
                h, weight.under(f"{scope}.self_attn"), config, config.is_dsa(i), given.selected.get(i)
            )
            if config.is_dsa(i):
                trace.index_scores[i], trace.selected[i] = index_scores, selected
        stream = a if restart else stream + a

        h = res_mix(banks, stream, f"{scope}.mlp_res")
        h = rms_norm(h, weight(f"{scope}.post_attention_layernorm.weight"), config.eps)
        if config.is_moe(i):
            m, trace.choice_scores[i], trace.experts[i] = moe.layer(
                h, weight.under(f"{scope}.block_sparse_moe"), config, given.experts.get(i)
            )
        else:
            m = moe.mlp(h, weight.under(f"{scope}.mlp"), config)
        stream = stream + m
        trace.outputs[i] = stream

    h = res_mix(banks, stream, "model.output_attn_res")
    h = rms_norm(h, weight("model.norm.weight"), config.eps)
    trace.logits = linear(h, weight("lm_head.weight"))
    return trace
