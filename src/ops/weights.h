// The weights of each kind of block, as stages read them: views with the shape at the end of each line. D =
// heads·128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "formats/bf16.h"

namespace perigee {

// A matrix once more, in the order in which a backend reads it (Backend::tile).
struct Tiles {
  const std::byte* data = nullptr;
  int segments = 1;  // equal blocks of columns, each a sum of its own (the lane rule)
};

// One matrix W[out, in] in row-major bf16: y = W x.
struct Linear {
  const bf16* weight = nullptr;  // [out, in]
  int out = 0, in = 0;
  Tiles tiles = {};
};

// An MXFP4 matrix: value(o, i) = e2m1(nibble i of row o) · 2^(scale[o, i/32] − 127); low nibble first. Scale
// 0 counts as zero (2^-127 is subnormal).
struct Mxfp4Linear {
  const uint8_t* packed = nullptr;  // [out, in/2]
  const uint8_t* scale = nullptr;   // [out, in/32] e8m0
  int out = 0, in = 0;
  Tiles tiles = {};
};

using ExpertLinear = std::variant<Linear, Mxfp4Linear>;

struct GluWeights {  // down(act(gate x) ⊙ up x)
  Linear gate, up, down;
};

struct AttnResWeights {
  const float* score = nullptr;  // [hidden] norm weight ⊙ proj weight, exact in fp32
};

struct KdaWeights {
  Linear q, k, v;                  // [D, hidden]
  const float* conv_q = nullptr;   // [D, 4], tap 3 is the current token
  const float* conv_k = nullptr;   // [D, 4]
  const float* conv_v = nullptr;   // [D, 4]
  Linear f_a, f_b;                 // [128, hidden], [D, 128]
  Linear beta;                     // [heads, hidden]
  Linear gate;                     // [D, hidden] when the gate is full rank
  Linear g_a, g_b;                 // [128, hidden], [D, 128] otherwise
  const float* a_log = nullptr;    // [heads]
  const float* dt_bias = nullptr;  // [D]
  const float* o_norm = nullptr;   // [128]
  Linear o;                        // [hidden, D]
};

struct IndexerWeights {
  Linear q;                            // [index heads · 128, q_lora]
  Linear k;                            // [128, hidden]
  Linear head_weight;                  // [index heads, hidden]
  const float* k_norm = nullptr;       // [128]
  const float* k_norm_bias = nullptr;  // [128]
};

struct MlaWeights {
  Linear q_a;                        // [q_lora, hidden]; unused when q_lora = 0
  const float* q_a_norm = nullptr;   // [q_lora]
  Linear q;                          // q_b [heads·192, q_lora], or q_proj [heads·192, hidden]
  Linear kv_a;                       // [512 + 64, hidden]
  const float* kv_a_norm = nullptr;  // [512]
  Linear w_uk_t;  // [heads·512, 128] key half of kv_b, transposed: absorbed q = W_UKᵀ q_nope
  Linear w_uv;    // [heads·128, 512] value half of kv_b
  Linear gate;    // [heads·128, hidden] when output_gate
  Linear o;       // [hidden, heads·128]
  std::optional<IndexerWeights> indexer;
};

struct ExpertAddresses;

struct MoeWeights {
  Linear router;                       // [experts, hidden]
  const float* router_bias = nullptr;  // [experts]
  Linear latent_down, latent_up;       // [latent, hidden], [hidden, latent] when latent
  const float* latent_norm = nullptr;  // [latent]
  struct Expert {
    ExpertLinear gate, up, down;  // w1 [inter, in], w3 [inter, in], w2 [in, inter]
  };
  std::vector<Expert> experts;
  const ExpertAddresses* addresses =
      nullptr;                       // [experts] of `experts` (expert_addresses.h), in a device's memory
  std::optional<GluWeights> shared;  // intermediate = shared experts · inter
};

}  // namespace perigee
