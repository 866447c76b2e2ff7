#include "ops/cpu/fast/backend.h"

namespace perigee::cpu {

std::vector<std::string> fast_stages() {
  return {"attn_res_mix",  "lane_reduce",  "lm_head",     "sample",      "kda_project", "kda_conv_norm_gate",
          "kda_chunk",     "kda_output",   "mla_project", "index_front", "mla_query",   "index_select",
          "sparse_attend", "dense_attend", "mla_output",  "glu_mlp",     "moe_route",   "moe_experts",
          "moe_combine"};
}

}  // namespace perigee::cpu
