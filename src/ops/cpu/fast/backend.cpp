#include "ops/cpu/fast/backend.h"

namespace perigee::cpu {

std::vector<std::string> fast_stages() {
  return {"attn_res_mix", "lane_reduce",  "sample",        "kda_conv_norm_gate",
          "kda_chunk",    "index_select", "sparse_attend", "dense_attend"};
}

}  // namespace perigee::cpu
