// The stages: the seam between model/ and a device. model/ is written once in terms of these; a backend is
// free inside a stage and no finer. Every backend of one numerics identity gives the same bits.
//
// Notation: R rows (tokens of a step, any mix of sequences), hidden h, D = heads·128. Matrices are row-major
// W[out, in]. "dot" is the identity's bf16 product sum over `in`, fp32 (x86-bf16-v1: one K segment,
// ops/cpu/arith.h; on CUDA: ops/cuda/products.h). Where a comment gives the order of other sums it is that
// of x86-bf16-v1; CUDA kernels state theirs where it differs, and round at the same places. "→ bf16" rounds
// to nearest even. rms(x; w) = x · rsqrt(mean(x²) + eps) · w in fp32.
//
// Every section names the source of its maths, every stage its shapes, roundings and the order of its sums.
// No stage throws on data; sizes that do not fit are a broken invariant.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/memory.h"
#include "ops/block_config.h"
#include "ops/cache_view.h"
#include "ops/plan.h"
#include "ops/weights.h"

namespace perigee {

// --- any block
// AttnRes: the Kimi K3 model card. Sampling: the Gumbel-max trick.

// out[r] = table[token[r]]. Exact copy. A token that the host does not know yet is drawn_token(i): the one
// that the last `sample` has drawn from its row i.
constexpr int32_t drawn_token(int row) { return -1 - row; }
constexpr int row_of_drawn(int32_t token) { return -1 - token; }
struct EmbedArgs {
  const bf16* table;                // [vocab, hidden]
  std::span<const int32_t> tokens;  // [R] each in [0, vocab), or a drawn_token
  bf16* out;                        // [R, hidden]
  int hidden;
};

// Block AttnRes mix and the norm that follows. V = banks then stream; s_j = rsqrt(mean V_j² + eps) · Σ
// V_j·score; p = softmax(s) over j; mix = Σ p_j V_j in ascending j, fp32; out = rms(mix; norm) → bf16, the
// only rounding. Without banks the mix is the stream itself (also every model without AttnRes).
struct AttnResMixArgs {
  const bf16* stream;                  // [R, hidden]
  std::span<const bf16* const> banks;  // each [R, hidden], oldest first
  const float* score;                  // [hidden] AttnRes norm weight ⊙ proj weight; unused without banks
  const float* norm;                   // [hidden]
  float eps;
  bf16* out;  // [R, hidden]
  int rows, hidden;
};

// The lane rule: delta = tree over lanes of partial, fp32 → bf16; stream = delta, or stream + delta → bf16.
struct LaneReduceArgs {
  const float* partial;  // [lanes, R, hidden]
  bf16* stream;          // [R, hidden] in and out
  bool restart;          // AttnRes block start: the stream is replaced
  int lanes, rows, hidden;
};

// logits[i] = dot(W, x[row[i]]), fp32, not rounded.
struct LmHeadArgs {
  Linear weight;              // [vocab, hidden]
  const bf16* x;              // [R, hidden] after the final norm
  std::span<const int> rows;  // rows that need logits
  float* logits;              // [rows.size(), vocab]
};

// Sampling of one token per logit row, by position: see SampleParams. Log-probabilities are z − max − log Σ
// exp(z − max) with z = logits (or logits / temperature for the processed distribution), the sum cut into
// `lanes` blocks of vocabulary rows. Temperature below 1e-5, where logits / temperature could overflow: the
// largest logit, lowest id on ties. Otherwise argmax(log p + Gumbel) over the kept tokens, noise from
// Philox(seed, stream, position, token): the same token whatever the batch or the drafts.
constexpr float kGreedyTemperature = 1e-5f;
constexpr uint32_t kSampleStream = 0;

struct SampleParams {
  float temperature = 1.0f;
  float top_p = 1.0f;  // keep the smallest set of most likely tokens whose probability reaches top_p
  int top_k = 0;       // 0: all
  uint64_t seed = 0;
};
struct SampleRow {
  SampleParams params;
  int64_t position = 0;              // of the token being sampled
  const float* processed = nullptr;  // [vocab] what to draw from; null: the logits as they are
};
struct Drawn {
  int32_t token = 0;
  float logit = 0;     // the token's in `logits`; its raw log-probability is logit − log_norm
  float log_norm = 0;  // log Σ exp(logits)
};
struct SampleArgs {
  const float* logits;    // [count, vocab]
  const SampleRow* rows;  // [count] staged (Memory::staging), like
  Drawn* drawn;           // [count] out
  int count, vocab, lanes;
};

// --- KDA
// The Kimi Linear report and its public implementations.

// q̃, k̃, ṽ, gate = dot(W, x) → bf16 (a low-rank gate and f_a round to bf16 between their two products).
// u = dot(f_b, f_a) + dt_bias, fp32; g = bound·σ(exp(A_log)·u) with a bound, else −exp(A_log)·softplus(u); β
// = σ(dot).
struct KdaProjectArgs {
  const KdaWeights& weights;
  const KdaConfig& config;
  const bf16* x;     // [R, hidden]
  bf16* conv_input;  // [R, 3, D] pre-conv q̃, k̃, ṽ
  bf16* gate;        // [R, D]
  float* g;          // [R, D] log decay, ≤ 0
  float* beta;       // [R, heads]
  int rows;
};

// Causal depthwise convolution over 4 positions (taps in ascending age order, fp32 chain, zeros before
// position 0), SiLU, then q and k divided by sqrt(Σ² + 1e-6) per head and q scaled by 128^-½, all fp32; →
// bf16 q, k, v. Earlier inputs come from the same step or from the slots' rings.
struct KdaConvArgs {
  const KdaWeights& weights;
  const KdaConfig& config;
  std::span<const SequenceRows> sequences;
  std::span<const KdaSlot> slots;  // one per sequence
  const bf16* conv_input;          // [R, 3, D]
  bf16 *q, *k, *v;                 // [R, D]
};

// Delta-rule attention in chunk-row form (numerics.md): chunks of 16 positions at multiples of 16, S known
// only at chunk starts. For row i of a chunk with S₀ at its start, G the running sum of g in the chunk, all
// fp32:
//   A_ij = β_i Σ_d k_i k_j e^{G_i−G_j} (j < i)             16 partial sums over d, fixed tree
//   M_ij = Σ_d q_i k_j e^{G_i−G_j} (j ≤ i)                 the same
//   T_ii = 1, T_ij = −Σ_{j≤l<i} A_il T_lj                  chain over l
//   w_i = β_i (v_i − (e^{G_i}⊙k_i)ᵀS₀)                     chain over d
//   u_i = Σ_{j≤i} T_ij w_j,  o_i = (e^{G_i}⊙q_i)ᵀS₀ + Σ_{j≤i} M_ij u_j       over d, then j
//   S₁ = diag(e^{G_15})S₀ + Σ_j (e^{G_15−G_j}⊙k_j)u_jᵀ     chain over j
// Rows at or after the last stored chunk start go to the slot's ring; S is stored for every chunk end ≤
// accepted.
struct KdaChunkArgs {
  const KdaConfig& config;
  std::span<const SequenceRows> sequences;
  std::span<const KdaSlot> slots;  // one per sequence; updated
  const bf16* conv_input;          // [R, 3, D] kept in the ring
  const bf16 *q, *k, *v;           // [R, D]
  const float* g;                  // [R, D]
  const float* beta;               // [R, heads]
  float* out;                      // [R, D] fp32
};

// y = rms(o; o_norm) per head ⊙ σ(gate), fp32 → bf16; lane l: partial = dot over the l-th block of D/lanes
// columns of o_proj.
struct KdaOutputArgs {
  const KdaWeights& weights;
  const KdaConfig& config;
  const float* o;    // [R, D]
  const bf16* gate;  // [R, D]
  float eps;
  float* partial;  // [lanes, R, hidden]
  int rows, lanes;
};

// --- MLA, with or without DSA
// DeepSeek-V2 (MLA) and DeepSeek-V3.2 (DSA); output gates: the Kimi K3 model card.

// q_a, kv_a, gate, raw index key = dot(W, x) → bf16; index head weights = dot(W, x), fp32.
struct MlaProjectArgs {
  const MlaWeights& weights;
  const bf16* x;        // [R, hidden]
  bf16* q_a;            // [R, q_lora] when q_lora > 0
  bf16* kv_a;           // [R, 512 + 64]
  bf16* gate;           // [R, heads·128] when gated
  bf16* index_key;      // [R, 128] with DSA
  float* index_weight;  // [R, index heads] with DSA
  int rows;
};

// cq = rms(q_a; q_a_norm) → bf16. With DSA: index q = dot(W, cq) fp32, quantised per head vector like the
// keys (fp8: e4m3 with scale amax/448; mxfp4: per 32; bf16: rounded); index key = LayerNorm(k; weight, bias),
// fp32, straight into the cache format; head weight = ((w · q scale) · (128^-½ · heads^-½)), fp32.
struct IndexFrontArgs {
  const MlaWeights& weights;
  const bf16* q_a;        // [R, q_lora]
  const bf16* index_key;  // [R, 128]
  float* index_weight;    // [R, index heads] in: raw; out: folded
  float eps;
  bf16* cq;           // [R, q_lora]
  bf16* index_query;  // [R, index heads, 128] quantised values, exact in bf16
  std::span<const SequenceRows> sequences;
  std::span<const PageTable> pages;  // one per sequence; index keys are written
  int rows;
};

// q = dot(W, cq or x) → bf16; absorbed q_h = dot(W_UK[h]ᵀ, q_nope) → bf16; latent = rms(c; kv_a_norm) fp32
// and k_pe, both straight into the cache format.
struct MlaQueryArgs {
  const MlaWeights& weights;
  const MlaConfig& config;
  const bf16* q_input;  // [R, q_lora] cq, or [R, hidden] x
  const bf16* kv_a;     // [R, 512 + 64]
  float eps;
  bf16* query;  // [R, heads, 512 + 64]
  std::span<const SequenceRows> sequences;
  std::span<const PageTable> pages;  // one per sequence; latents are written
  int rows;
};

// score(s) = k_scale(s) · Σ_h w_h · relu(dot(q_h, k_s)) over s ≤ position, chain over h, fp32 → bf16; the
// top_k positions in the order (score descending with −0 = +0 and NaN last, position ascending), listed in
// ascending position.
struct IndexSelectArgs {
  const DsaConfig& config;
  const bf16* index_query;    // [R, index heads, 128] values that the keys' format has
  const float* index_weight;  // [R, index heads] folded
  std::span<const SequenceRows> sequences;
  std::span<const PageTable> pages;
  int32_t* selected;  // [R, top_k] ascending positions, −1 behind the last
  int32_t* count;     // [R]
};

// Absorbed attention over latents: logit = dot(q, latent)·192^-½; keys in ascending position, in tiles of 64
// with the running max of the tiles before (m' = max(m, tile max); l' = l·e^{m−m'} + Σp; z' = z·e^{m−m'} + Σ
// p̂·c with p = e^{s−m'} fp32, p̂ = p → bf16, key pairs added odd first); z/l → bf16. With attention lanes each
// lane (position/16 mod A) is a walk of its own, folded left to right. A row whose lane holds no key leaves
// that lane out exactly. sparse_attend walks the selected positions; dense_attend walks all, cut into
// segments of dense_segment (4,096) positions that are walks of their own, folded left to right.
struct AttendArgs {
  const MlaConfig& config;
  const bf16* query;  // [R, heads, 512 + 64]
  std::span<const SequenceRows> sequences;
  std::span<const PageTable> pages;
  const int32_t* selected;  // [R, top_k] for sparse_attend; unused by dense_attend
  const int32_t* count;     // [R]
  int top_k;
  int attention_lanes;
  int dense_segment;  // positions a segment of dense_attend spans
  bf16* out;          // [R, heads, 512]
};

// o_h = dot(W_UV[h], z_h) fp32, ⊙ σ(gate) when gated → bf16; lane l: partial over its block of o_proj's
// columns.
struct MlaOutputArgs {
  const MlaWeights& weights;
  const MlaConfig& config;
  const bf16* z;     // [R, heads, 512]
  const bf16* gate;  // [R, heads·128] or null
  float* partial;    // [lanes, R, hidden]
  int rows, lanes;
};

// --- MLP and MoE
// DeepSeek-V3 (router); LatentMoE and SiTU: the Kimi K3 model card.

// silu(g)·u, or SiTU: [β tanh(g/β) σ(g)]·[β_l tanh(u/β_l)] (β_l ≤ 0: u as it is), fp32.
struct ActivationParams {
  Activation kind = Activation::kSilu;
  float beta = 4.0f, linear_beta = 25.0f;
};

// a = act(dot(gate, x), dot(up, x)) fp32 → bf16; lane l: partial = dot over its block of down's columns.
struct GluMlpArgs {
  const GluWeights& weights;
  ActivationParams activation;
  const bf16* x;   // [R, hidden]
  float* partial;  // [lanes, R, hidden]
  int rows, lanes;
};

// s = σ(dot(router, x)) fp32; top-k by (s + bias descending, id ascending), listed by ascending id; weight =
// s (without bias), divided by (Σ in ascending id + 1e-20) when renormalised, times the scaling factor. z =
// dot(down, x) → bf16.
struct MoeRouteArgs {
  const MoeWeights& weights;
  const MoeConfig& config;
  const bf16* x;         // [R, hidden]
  int32_t* experts;      // [R, k] ascending
  float* expert_weight;  // [R, k]
  bf16* z;               // [R, latent] when latent
  int rows;
};

// Per row and expert: a = act(dot(w1, z), dot(w3, z)) → bf16; down partial of a lane → bf16; y_lane = Σ
// weight · partial in ascending expert id, fp32. Lanes are blocks of intermediate columns, or of expert ids.
struct MoeExpertsArgs {
  const MoeWeights& weights;
  const MoeConfig& config;
  ActivationParams activation;
  const bf16* z;               // [R, in]
  const int32_t* experts;      // [R, k]
  const float* expert_weight;  // [R, k]
  float* partial;              // [lanes, R, in]
  int rows, in, lanes;
  bool lanes_expert;
};

// y = lane tree of routed; with a latent: y = rms(y; latent_norm) → bf16 (or y → bf16), then dot(up, y);
// delta = y + lane tree of shared, fp32 → bf16; stream + delta → bf16.
struct MoeCombineArgs {
  const MoeWeights& weights;
  const MoeConfig& config;
  const float* routed;  // [lanes, R, in]
  const float* shared;  // [lanes, R, hidden] or null
  bf16* stream;         // [R, hidden] in and out
  float eps;
  int rows, hidden, lanes;
};

// --- the seam
// What a backend implements, and what it is told of a step.

// Everything about a step that lies on the host, in the spans that the stages will be called with.
struct StepInputs {
  std::span<const int32_t> tokens;                // [R]
  std::span<const int> logit_rows;                // [rows of lm_head]
  std::span<const SequenceRows> sequences;        // in row order
  std::span<const std::vector<KdaSlot>> slots;    // per KDA layer, one per sequence
  std::span<const std::vector<PageTable>> pages;  // per attention layer, one per sequence
  std::span<const int64_t> page_count;            // [sequences] of page pointers
  // The host looks at nothing while the stages run, and calls them with the pointers of the step before when
  // the shape is the same.
  bool repeatable = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Where the backend's arrays lie: every pointer inside stage arguments; spans are on the host.
  virtual Memory& memory() { return host_memory(); }
  // To be called before and after the stages of a step; what the step is given stays as it is until then.
  // When begin_step returns true, all stages of the step have been enqueued as those of an earlier step of
  // the same shape were: they are not to be called.
  virtual bool begin_step(const StepInputs&) { return false; }
  virtual void end_step() {}
  virtual std::string architecture() const = 0;  // part of the numerics identity, e.g. "x86-bf16-v1"
  virtual std::string kernels() const = 0;       // which code computes it, e.g. "plain": never changes a bit

  // A backend may read matrices in an order of its own, made once after loading. How many bytes it wants for
  // a matrix whose columns are cut into `segments` sums by the lane rule; 0: it reads the matrix as it is.
  virtual int64_t tile_bytes(const Linear&, int /*segments*/) const { return 0; }
  virtual int64_t tile_bytes(const Mxfp4Linear&, int /*segments*/) const { return 0; }
  // Writes them to `out`, which is 64-byte aligned. Linear::tiles then points there; a stage called with
  // another number of lanes, or without tiles, still computes, slower.
  virtual void tile(const Linear&, int /*segments*/, std::byte* /*out*/) {}
  virtual void tile(const Mxfp4Linear&, int /*segments*/, std::byte* /*out*/) {}
  // Names the order, for files that keep tiles: another order, another name.
  virtual std::string tile_layout() const { return ""; }

  virtual void embed(const EmbedArgs&) = 0;
  virtual void attn_res_mix(const AttnResMixArgs&) = 0;
  virtual void lane_reduce(const LaneReduceArgs&) = 0;
  virtual void lm_head(const LmHeadArgs&) = 0;
  virtual void sample(const SampleArgs&) = 0;

  virtual void kda_project(const KdaProjectArgs&) = 0;
  virtual void kda_conv_norm_gate(const KdaConvArgs&) = 0;
  virtual void kda_chunk(const KdaChunkArgs&) = 0;
  virtual void kda_output(const KdaOutputArgs&) = 0;

  virtual void mla_project(const MlaProjectArgs&) = 0;
  virtual void index_front(const IndexFrontArgs&) = 0;
  virtual void mla_query(const MlaQueryArgs&) = 0;
  virtual void index_select(const IndexSelectArgs&) = 0;
  virtual void sparse_attend(const AttendArgs&) = 0;
  virtual void dense_attend(const AttendArgs&) = 0;
  virtual void mla_output(const MlaOutputArgs&) = 0;

  virtual void glu_mlp(const GluMlpArgs&) = 0;
  virtual void moe_route(const MoeRouteArgs&) = 0;
  virtual void moe_experts(const MoeExpertsArgs&) = 0;
  virtual void moe_combine(const MoeCombineArgs&) = 0;
};

}  // namespace perigee
