"""Model shapes, written as the config.json of K3.1 spells them: the demo model, and a toy for rehearsals on a CPU."""
import json

import vocab

kDemo = dict(hidden=256, layers=8, dense=768, heads=4, q_lora=128, kv_lora=512, nope=128, pe=64, v=128, kda_heads=4, kda_dim=128,
             experts=32, top_experts=4, expert=128, shared=2, latent=128, index_heads=2, index_dim=128, index_topk=128, block=4)
kToy = dict(hidden=64, layers=4, dense=96, heads=2, q_lora=32, kv_lora=64, nope=32, pe=16, v=32, kda_heads=2, kda_dim=32,
            experts=8, top_experts=2, expert=32, shared=2, latent=32, index_heads=2, index_dim=32, index_topk=16, block=2)


def make(s) -> dict:
    full = [i for i in range(1, s["layers"] + 1) if i % 4 == 0]
    base = vocab.kBaseRanks
    text = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
        "hidden_size": s["hidden"], "num_hidden_layers": s["layers"], "vocab_size": vocab.kVocab, "tie_word_embeddings": False,
        "intermediate_size": s["dense"], "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-05, "max_position_embeddings": 1048576,
        "num_attention_heads": s["heads"], "num_key_value_heads": s["heads"], "q_lora_rank": s["q_lora"], "kv_lora_rank": s["kv_lora"],
        "qk_nope_head_dim": s["nope"], "qk_rope_head_dim": s["pe"], "v_head_dim": s["v"], "mla_use_nope": True,
        "mla_use_output_gate": True, "attn_res_block_size": s["block"], "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "num_experts": s["experts"], "num_experts_per_token": s["top_experts"], "num_shared_experts": s["shared"],
        "moe_intermediate_size": s["expert"], "routed_expert_hidden_size": s["latent"], "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc", "use_grouped_topk": True, "num_expert_group": 1,
        "topk_group": 1, "moe_renormalize": True, "routed_scaling_factor": 1.0, "num_nextn_predict_layers": 0,
        "linear_attn_config": {
            "num_heads": s["kda_heads"], "head_dim": s["kda_dim"], "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "use_full_rank_gate": True, "full_attn_layers": full,
            "kda_layers": [i for i in range(1, s["layers"] + 1) if i not in full]},
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {
                "format": "mxfp4-pack-quantized", "targets": ["Linear"], "input_activations": None,
                "weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group", "symmetric": True,
                            "dynamic": False, "scale_dtype": "torch.uint8"}}},
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
                       "re:.*routed_expert_(down|up)_proj.*"]},
        "dsa_config": {"layers": full, "num_heads": s["index_heads"], "head_dim": s["index_dim"], "top_k": s["index_topk"]},
    }
    return {"architectures": ["KimiK31ForConditionalGeneration"], "model_type": "kimi_k31", "bos_token_id": base,
            "eos_token_id": vocab.kEndOfMessage, "pad_token_id": vocab.kPad, "tie_word_embeddings": False, "text_config": text}


def with_bf16_experts(config):
    return config | {"text_config": {k: v for k, v in config["text_config"].items() if k != "quantization_config"}}


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({
        "bos_token_id": config["bos_token_id"], "eos_token_id": [vocab.kEndOfMessage, vocab.kEos], "pad_token_id": config["pad_token_id"],
        "temperature": 1.0, "top_p": 1.0}, indent=1) + "\n")
