// The KDA stages on CUDA devices: what they ask of their arguments, their workspace and their launches.
#include "ops/cuda/kda.h"

#include <algorithm>

#include "base/error.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/kda_chunk.h"
#include "ops/cuda/products.h"

namespace perigee::cuda {
namespace {

// Tiles that kda_chunk keeps at a time; more heads than fit take turns.
constexpr int64_t kTileBytes = int64_t{512} << 20;

void check_config(const KdaConfig& config) {
  check(config.head_dim == kKdaHead && config.conv_kernel == 4,
        "KDA on CUDA: heads of 128 channels and convolutions over 4 positions");
}

}  // namespace

void CudaBackend::kda_project(const KdaProjectArgs& args) {
  check_config(args.config);
  if (args.rows == 0) return;
  const KdaWeights& w = args.weights;
  const int64_t D = int64_t{args.config.num_heads} * kKdaHead;
  const Arena::Scope scope(scratch_);
  bf16* f = scratch_.take<bf16>(int64_t{args.rows} * w.f_a.out);
  std::vector<Product> of_x, of_low;
  const Linear* const qkv[] = {&w.q, &w.k, &w.v};
  for (int part = 0; part < 3; ++part) {
    of_x.push_back(product(*qkv[part], args.x, args.rows, args.conv_input + part * D));
    of_x.back().y_stride = 3 * D;
  }
  of_x.push_back(product(w.f_a, args.x, args.rows, f));
  of_x.push_back(product(w.beta, args.x, args.rows, args.beta));
  of_x.back().finish.kind = Finish::kSigmoid;
  of_low.push_back(product(w.f_b, f, args.rows, args.g));
  of_low.back().finish = {.kind = Finish::kKdaDecay,
                          .a_log = w.a_log,
                          .dt_bias = w.dt_bias,
                          .head_dim = kKdaHead,
                          .bounded = args.config.gate_lower_bound.has_value(),
                          .bound = args.config.gate_lower_bound.value_or(0.0f)};
  if (args.config.full_rank_gate) {
    of_x.push_back(product(w.gate, args.x, args.rows, args.gate));
  } else {
    bf16* g = scratch_.take<bf16>(int64_t{args.rows} * w.g_a.out);
    of_x.push_back(product(w.g_a, args.x, args.rows, g));
    of_low.push_back(product(w.g_b, g, args.rows, args.gate));
  }
  multiply_all(of_x, stream());
  multiply_all(of_low, stream());
}

void CudaBackend::kda_conv_norm_gate(const KdaConvArgs& args) {
  check_config(args.config);
  const RowsView rows = tables_.rows();
  if (rows.rows > 0) launch_kda_conv(args, rows, tables_.slots(args.slots), stream());
}

void CudaBackend::kda_chunk(const KdaChunkArgs& args) {
  check_config(args.config);
  const RowsView rows = tables_.rows();
  if (rows.rows == 0) return;
  const int heads = args.config.num_heads;
  KdaChunkLaunch launch{.rows = rows,
                        .slots = tables_.slots(args.slots),
                        .conv_input = args.conv_input,
                        .q = args.q,
                        .k = args.k,
                        .v = args.v,
                        .g = args.g,
                        .beta = args.beta,
                        .out = args.out,
                        .heads = heads,
                        .first_head = 0,
                        .head_count = heads,
                        .chunks_of_sequence = 0,
                        .tile_blocks = 0,
                        .tiles = nullptr};
  int longest = 0, shortest = kKdaDecodeRows + 1;
  for (const SequenceRows& s : args.sequences)
    longest = std::max(longest, s.rows), shortest = std::min(shortest, s.rows);
  if (shortest <= kKdaDecodeRows) launch_kda_decode(launch, stream());
  if (longest > kKdaDecodeRows) {
    const int chunks = KdaTiles::chunks(longest);
    const int64_t tiles = KdaTiles::count(rows.rows, rows.count), even = int64_t{chunks} * rows.count;
    // Blocks by sequence, unless most would find that theirs has fewer chunks.
    const bool by_sequence = even <= 2 * tiles;
    const int most_heads = static_cast<int>(
        std::clamp<int64_t>(kTileBytes / (tiles * static_cast<int64_t>(sizeof(KdaTile))), 1, heads));
    const Arena::Scope scope(scratch_);
    launch.chunks_of_sequence = by_sequence ? chunks : 0;
    launch.tile_blocks = by_sequence ? even : tiles;
    launch.tiles = scratch_.take<KdaTile>(tiles * most_heads);
    for (int first = 0; first < heads; first += most_heads) {
      launch.first_head = first;
      launch.head_count = std::min(most_heads, heads - first);
      launch_kda_chunk_rows(launch, stream());
      launch_kda_chunk_state(launch, stream());
    }
  }
  for (size_t s = 0; s < args.sequences.size(); ++s) move_base(args.slots[s], args.sequences[s]);
}

void CudaBackend::kda_output(const KdaOutputArgs& args) {
  check_config(args.config);
  if (args.rows == 0) return;
  const Arena::Scope scope(scratch_);
  bf16* y = scratch_.take<bf16>(int64_t{args.rows} * args.config.num_heads * kKdaHead);
  launch_kda_norm_gate(args, y, stream());
  multiply_lanes(args.weights.o, y, args.rows, args.lanes, args.partial, stream());
}

}  // namespace perigee::cuda
