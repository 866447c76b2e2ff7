// sparse_attend and dense_attend: walks over latents, all heads of a row together, so that a latent is read
// and decoded once for them. Many rows are tasks of their own; few rows are cut into walks and heads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/scratch.h"
#include "ops/cpu/fast/sequence_kernels.h"
#include "ops/elementary.h"

namespace perigee::cpu {

namespace {

// Latents decoded for a whole step at most: 72 MiB. Beyond, each walk decodes its own, tile by tile.
constexpr int64_t kSharedLatents = 1 << 16;
constexpr int64_t kDecodedAhead = 8;  // latents of a selection that are fetched ahead of the decoding

// Fetches bytes that are read soon: latents of a selection lie wherever they lie, and no hardware foresees
// it.
void prefetch(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
}

// What walks of some heads have reached: max, sum and value of each head; no key yet while empty.
struct Heads {
  float *max, *sum, *value;  // [heads], [heads], [heads, 512]
  bool empty = true;

  static int64_t floats(int heads) { return int64_t{heads} * (kLatentRank + 2); }
  Heads(float* memory, int heads) : max(memory), sum(memory + heads), value(memory + 2 * heads) {}
};

// left ← left folded with right, the later keys.
void fold(Heads& left, Heads& right, int heads) {
  if (right.empty) return;
  if (left.empty) {
    std::swap(left, right);
    right.empty = true;
    return;
  }
  for (int h = 0; h < heads; ++h) {
    const float m = std::max(left.max[h], right.max[h]);
    const float a = exp(left.max[h] - m), b = exp(right.max[h] - m);
    left.max[h] = m;
    left.sum[h] = std::fma(left.sum[h], a, right.sum[h] * b);
    float* z = left.value + h * kLatentRank;
    const float* y = right.value + h * kLatentRank;
    for (int d = 0; d < kLatentRank; ++d) z[d] = std::fma(z[d], a, y[d] * b);
  }
  right.empty = true;
}

struct Row {
  int64_t row;      // of the step
  int sequence;     // index
  int64_t keys;     // visible or selected
  int64_t decoded;  // first latent of the row, or of its sequence, among those decoded for the step
};

// One call of a stage.
class Attention {
 public:
  Attention(ThreadPool& pool, const SequenceKernels& kernels, const AttendArgs& args, bool dense)
      : pool_(pool),
        kernels_(kernels),
        a_(args),
        dense_(dense),
        heads_(args.config.num_heads),
        scale_(1.0f / std::sqrt(static_cast<float>(args.config.qk_head_dim()))) {
    for (size_t s = 0; s < a_.sequences.size(); ++s) {
      const SequenceRows& seq = a_.sequences[s];
      for (int i = 0; i < seq.rows; ++i) {
        const int64_t row = seq.first_row + i;
        rows_.push_back({.row = row,
                         .sequence = static_cast<int>(s),
                         .keys = dense ? seq.start + i + 1 : a_.count[row],
                         .decoded = -1});
      }
    }
  }

  void run() {
    Arena& arena = thread_arena();
    const Arena::Scope scope(arena);
    const bool many = static_cast<int64_t>(rows_.size()) >= 4 * pool_.threads();
    many ? decode_sequences(arena) : decode_rows(arena);
    many ? attend_rows() : attend_walks(arena);
  }

 private:
  int64_t position(const Row& row, int64_t j) const {
    return dense_ ? j : a_.selected[row.row * a_.top_k + j];
  }
  int64_t segments(const Row& row) const {
    return dense_ ? (row.keys + a_.dense_segment - 1) / a_.dense_segment : 1;
  }
  const uint8_t* record(const PageTable& pages, int64_t p) const {
    return pages.latent(p / kPageTokens) + p % kPageTokens * latent_bytes(pages.latent_format);
  }
  // Where a walk finds latent j of a row: decoded, or its record.
  const void* latent(const Row& row, const PageTable& pages, int64_t j) const {
    if (row.decoded < 0) return record(pages, position(row, j));
    return decoded_ + (row.decoded + (by_position_ ? position(row, j) : j)) * kLatentDim;
  }
  void decode(const PageTable& pages, int64_t p, bf16* out) const {
    kernels_.decode_latent(pages.latent_format, record(pages, p), pages.latent_scale, out);
  }

  // Many rows: a sequence's latents once for all its rows, where they read each more than once.
  void decode_sequences(Arena& arena) {
    by_position_ = true;
    struct Part {
      const PageTable* pages;
      int64_t first, count;
    };
    std::vector<Part> parts;
    int64_t latents = 0;
    size_t r = 0;
    for (size_t s = 0; s < a_.sequences.size(); ++s) {
      const int64_t total = a_.sequences[s].start + a_.sequences[s].rows;
      int64_t reads = 0;
      const size_t begin = r;
      for (; r < rows_.size() && rows_[r].sequence == static_cast<int>(s); ++r) reads += rows_[r].keys;
      if (a_.pages[s].latent_format == LatentFormat::kBf16 || reads < total ||
          latents + total > kSharedLatents)
        continue;
      for (size_t i = begin; i < r; ++i) rows_[i].decoded = latents;
      parts.push_back({&a_.pages[s], latents, total});
      latents += total;
    }
    if (!latents) return;
    decoded_ = arena.take<bf16>(latents * kLatentDim);
    for (const Part& part : parts) {
      pool_.run(part.count,
                [&](int64_t p) { decode(*part.pages, p, decoded_ + (part.first + p) * kLatentDim); });
    }
  }

  // Few rows: what each selected, once for all its heads.
  void decode_rows(Arena& arena) {
    int64_t latents = 0;
    for (Row& row : rows_) {
      if (a_.pages[row.sequence].latent_format == LatentFormat::kBf16 || latents + row.keys > kSharedLatents)
        continue;
      row.decoded = latents;
      latents += row.keys;
    }
    if (!latents) return;
    decoded_ = arena.take<bf16>(latents * kLatentDim);
    for (const Row& row : rows_) {
      if (row.decoded < 0) continue;
      const PageTable& pages = a_.pages[row.sequence];
      pool_.run(row.keys, [&](int64_t j) {
        const int64_t ahead = std::min(j + kDecodedAhead, row.keys - 1);
        prefetch(record(pages, position(row, ahead)), latent_bytes(pages.latent_format));
        decode(pages, position(row, j), decoded_ + (row.decoded + j) * kLatentDim);
      });
    }
  }

  // One walk of the heads [first, first + heads): the keys of one segment that belong to one attention lane.
  void walk(const Row& row, int lane, int64_t segment, const float* query, int heads, Heads& out) const {
    Arena& arena = thread_arena();
    const Arena::Scope scope(arena);
    const PageTable& pages = a_.pages[row.sequence];
    const bool own = row.decoded < 0 && pages.latent_format != LatentFormat::kBf16;
    bf16* tile = own ? arena.take<bf16>(kKeyTile * kLatentDim) : nullptr;
    const AttendWalk state{
        .query = query, .heads = heads, .scale = scale_, .max = out.max, .sum = out.sum, .value = out.value};
    const bf16* key[kKeyTile];
    int count = 0;
    out.empty = true;
    const auto flush = [&] {
      if (count) kernels_.add_tile(state, {.key = key, .count = count, .first = out.empty});
      out.empty &= count == 0;
      count = 0;
    };
    const int64_t begin = dense_ ? segment * a_.dense_segment : 0;
    const int64_t end = dense_ ? std::min<int64_t>(row.keys, begin + a_.dense_segment) : row.keys;
    const int64_t bytes = own ? latent_bytes(pages.latent_format) : latent_bytes(LatentFormat::kBf16);
    const auto in_lane = [&](int64_t j) { return position(row, j) / kChunk % a_.attention_lanes == lane; };
    for (int64_t j = begin; j < end; ++j) {
      const int64_t ahead = j + kKeyTile;
      if (ahead < end && in_lane(ahead)) prefetch(latent(row, pages, ahead), bytes);
      if (!in_lane(j)) continue;
      if (own) {
        decode(pages, position(row, j), tile + count * kLatentDim);
        key[count] = tile + count * kLatentDim;
      } else {
        key[count] = static_cast<const bf16*>(latent(row, pages, j));
      }
      if (++count == kKeyTile) flush();
    }
    flush();
  }

  const float* prepare(const Row& row, int first, int heads, Arena& arena) const {
    float* out = arena.take<float>(int64_t{heads} * kernels_.query_floats);
    for (int h = 0; h < heads; ++h) {
      kernels_.prepare_query(a_.query + (row.row * heads_ + first + h) * kLatentDim,
                             out + int64_t{h} * kernels_.query_floats);
    }
    return out;
  }

  void finish(const Row& row, int first, int heads, const Heads& total) const {
    for (int h = 0; h < heads; ++h) {
      const float* z = total.value + h * kLatentRank;
      bf16* out = a_.out + (row.row * heads_ + first + h) * kLatentRank;
      for (int d = 0; d < kLatentRank; ++d) out[d] = float_to_bf16(z[d] / total.sum[h]);
    }
  }

  void attend_rows() {
    pool_.run(static_cast<int64_t>(rows_.size()), [&](int64_t r) {
      const Row& row = rows_[r];
      Arena& arena = thread_arena();
      const Arena::Scope scope(arena);
      const float* query = prepare(row, 0, heads_, arena);
      const int64_t floats = Heads::floats(heads_);
      float* memory = arena.take<float>(3 * floats);
      Heads total(memory, heads_), in_lane(memory + floats, heads_), part(memory + 2 * floats, heads_);
      for (int lane = 0; lane < a_.attention_lanes; ++lane) {
        for (int64_t segment = 0; segment < segments(row); ++segment) {
          walk(row, lane, segment, query, heads_, part);
          fold(in_lane, part, heads_);
        }
        fold(total, in_lane, heads_);
      }
      finish(row, 0, heads_, total);
    });
  }

  // Every walk of every row is a task, cut into groups of heads where there are fewer walks than threads.
  void attend_walks(Arena& arena) {
    struct Walk {
      const Row* row;
      int lane;
      int64_t segment;
    };
    std::vector<Walk> walks;
    std::vector<int64_t> first_walk;  // of a row
    for (const Row& row : rows_) {
      first_walk.push_back(static_cast<int64_t>(walks.size()));
      for (int lane = 0; lane < a_.attention_lanes; ++lane) {
        for (int64_t segment = 0; segment < segments(row); ++segment) walks.push_back({&row, lane, segment});
      }
    }
    const int64_t count = static_cast<int64_t>(walks.size());
    const int wanted = static_cast<int>((pool_.threads() + count - 1) / count);
    const int group = std::max(2, (heads_ + wanted - 1) / wanted);
    const int groups = (heads_ + group - 1) / group;
    const auto heads_of = [&](int64_t g) {
      return std::min<int>(group, heads_ - static_cast<int>(g) * group);
    };

    const int64_t floats = Heads::floats(group);
    float* memory = arena.take<float>(count * groups * floats);
    std::vector<Heads> parts;  // [walks, groups]
    for (int64_t t = 0; t < count * groups; ++t)
      parts.emplace_back(memory + t * floats, heads_of(t % groups));
    pool_.run(count * groups, [&](int64_t t) {
      const Walk& w = walks[t / groups];
      Arena& own = thread_arena();
      const Arena::Scope scope(own);
      const int first = static_cast<int>(t % groups) * group, heads = heads_of(t % groups);
      walk(*w.row, w.lane, w.segment, prepare(*w.row, first, heads, own), heads, parts[t]);
    });
    pool_.run(static_cast<int64_t>(rows_.size()) * groups, [&](int64_t t) {
      const Row& row = rows_[t / groups];
      const int64_t g = t % groups;
      const auto part = [&](int lane, int64_t segment) -> Heads& {
        return parts[(first_walk[t / groups] + lane * segments(row) + segment) * groups + g];
      };
      for (int lane = 0; lane < a_.attention_lanes; ++lane) {
        for (int64_t segment = 1; segment < segments(row); ++segment)
          fold(part(lane, 0), part(lane, segment), heads_of(g));
        if (lane > 0) fold(part(0, 0), part(lane, 0), heads_of(g));
      }
      finish(row, static_cast<int>(g) * group, heads_of(g), part(0, 0));
    });
  }

  ThreadPool& pool_;
  const SequenceKernels& kernels_;
  const AttendArgs& a_;
  const bool dense_;
  const int heads_;
  const float scale_;
  std::vector<Row> rows_;
  bf16* decoded_ = nullptr;   // latents decoded for the step
  bool by_position_ = false;  // decoded_ holds whole sequences, not selections
};

}  // namespace

void FastBackend::sparse_attend(const AttendArgs& a) {
  if (rule_broken(Rule::kKey)) return PlainBackend::sparse_attend(a);
  Attention(pool_, *kernels_.sequence, a, false).run();
}

void FastBackend::dense_attend(const AttendArgs& a) {
  if (rule_broken(Rule::kKey)) return PlainBackend::dense_attend(a);
  Attention(pool_, *kernels_.sequence, a, true).run();
}

}  // namespace perigee::cpu
