#include "cache/cache_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace perigee {

namespace {

constexpr int64_t kAlignment = 16;  // of every layer's page: what a bulk copy on a GPU needs
constexpr int64_t kMostRankTokens = 16384;

bool power_of_two(int64_t n) { return n >= 1 && (n & (n - 1)) == 0; }

int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Σ ceil(x / block) over x = 1 … n.
double blocks_up_to(int64_t n, int64_t block) {
  const double q = static_cast<double>(n / block), r = static_cast<double>(n % block);
  return static_cast<double>(block) * q * (q + 1) / 2 + r * (q + 1);
}

int64_t layer_state_bytes(const StateKind& kind) { return kind.heads * kind.record_bytes; }

// The row that each layer's state goes to, widest kinds first, each layer into the first row with room;
// empty when a layer's state is wider than a row.
std::vector<std::vector<int>> group_states(const std::vector<StateKind>& kinds, int64_t row_bytes,
                                           int* rows) {
  std::vector<int> order(kinds.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return layer_state_bytes(kinds[a]) > layer_state_bytes(kinds[b]); });
  std::vector<std::vector<int>> row_of(kinds.size());
  std::vector<int64_t> room;
  *rows = 0;
  for (int kind : order) {
    const int64_t bytes = layer_state_bytes(kinds[kind]);
    if (bytes > row_bytes) return {};
    size_t row = 0;
    for (int layer = 0; layer < kinds[kind].layers; ++layer) {
      while (row < room.size() && room[row] < bytes) ++row;
      if (row == room.size()) room.push_back(row_bytes);
      room[row] -= bytes;
      row_of[kind].push_back(static_cast<int>(row));
    }
  }
  *rows = static_cast<int>(room.size());
  return row_of;
}

}  // namespace

CachePlan::CachePlan(CacheKinds kinds, const CachePlanOptions& options)
    : kinds_(std::move(kinds)), context_parallel_(options.context_parallel) {
  if (!power_of_two(context_parallel_)) {
    fail(ErrorCode::kUsage, "--decode-context-parallel-size {}: must be a power of two", context_parallel_);
  }
  std::erase_if(kinds_.states, [](const StateKind& k) { return layer_state_bytes(k) == 0 || k.layers == 0; });
  int64_t widest = 0;
  for (const StateKind& k : kinds_.states) widest = std::max(widest, layer_state_bytes(k));
  lay_out_page();
  // A model cut to its KDA layers keeps nothing for a token: the largest block has room for a layer's state.
  if (page_bytes_ == 0) page_bytes_ = align(widest / (kMostRankTokens / page_tokens_) + 1);
  for (int64_t tokens = page_tokens_; tokens <= kMostRankTokens; tokens *= 2) {
    choices_.push_back(consider(tokens * context_parallel_, options.length_mix));
  }
  const auto fits = [&](const BlockChoice& c) { return c.state_rows > 0 || kinds_.states.empty(); };
  const auto reject = [&](const BlockChoice& c) {
    fail(ErrorCode::kUsage,
         "a row of {} tokens has {} bytes, but the state of one layer needs {}; use a larger --block-size or "
         "tensor-parallel size",
         c.block_tokens, c.row_bytes, widest);
  };
  if (options.block_tokens != 0) {
    const auto given = std::find_if(choices_.begin(), choices_.end(), [&](const BlockChoice& c) {
      return c.block_tokens == options.block_tokens;
    });
    if (given == choices_.end()) {
      fail(ErrorCode::kUsage, "--block-size {}: must be a power of two from {} to {}", options.block_tokens,
           choices_.front().block_tokens, choices_.back().block_tokens);
    }
    if (!fits(*given)) reject(*given);
    choice_ = *given;
  } else {
    const BlockChoice* best = nullptr;
    for (const BlockChoice& c : choices_) {
      if (fits(c) && (!best || c.expected_waste < best->expected_waste)) best = &c;
    }
    if (!best) reject(choices_.back());
    choice_ = *best;
  }
  lay_out_states();
}

double CachePlan::bytes_per_token() const {
  double bytes = 0;
  for (const PageKind& k : kinds_.pages)
    bytes += static_cast<double>(k.layers * k.entry_bytes) / k.tokens_per_entry;
  return bytes / context_parallel_;
}

int64_t CachePlan::state_bytes() const {
  int64_t bytes = 0;
  for (const StateKind& k : kinds_.states) bytes += k.layers * layer_state_bytes(k);
  return bytes;
}

BlockChoice CachePlan::consider(int64_t block_tokens, const std::vector<int64_t>& length_mix) const {
  BlockChoice c{.block_tokens = block_tokens,
                .row_bytes = block_tokens / context_parallel_ / page_tokens_ * page_bytes_};
  group_states(kinds_.states, c.row_bytes, &c.state_rows);
  const double row = static_cast<double>(c.row_bytes);
  double rows = 0, used = 0;
  for (int64_t length : length_mix) {
    const int64_t from = length / 2, to = from + length;  // lengths from + 1 … to
    rows += (blocks_up_to(to, block_tokens) - blocks_up_to(from, block_tokens)) / static_cast<double>(length);
    used += (static_cast<double>(from + to + 1) / 2) * bytes_per_token();
  }
  const double n = static_cast<double>(std::max<size_t>(1, length_mix.size()));
  const double state_row_bytes = static_cast<double>(c.state_rows) * row;
  if (c.state_rows > 0) c.state_waste = 1 - static_cast<double>(state_bytes()) / state_row_bytes;
  c.expected_allocated = rows / n * row + state_row_bytes;
  c.expected_waste =
      c.expected_allocated - used / n - (c.state_rows > 0 ? static_cast<double>(state_bytes()) : 0);
  return c;
}

void CachePlan::lay_out_page() {
  page_tokens_ = kPageTokens;
  int layers = 0;
  for (const PageKind& k : kinds_.pages) {
    check(power_of_two(k.tokens_per_entry), "CachePlan: tokens_per_entry is a power of two");
    page_tokens_ = std::max<int64_t>(page_tokens_, k.tokens_per_entry);
    layers = std::max(layers, k.layers);
  }
  layer_offset_.resize(kinds_.pages.size());
  for (int layer = 0; layer < layers; ++layer) {
    for (size_t i = 0; i < kinds_.pages.size(); ++i) {
      const PageKind& k = kinds_.pages[i];
      if (layer >= k.layers) continue;
      layer_offset_[i].push_back(page_bytes_);
      page_bytes_ += align(page_tokens_ / k.tokens_per_entry * k.entry_bytes);
    }
  }
}

void CachePlan::lay_out_states() {
  int rows = 0;
  const auto row_of = group_states(kinds_.states, row_bytes(), &rows);
  std::vector<int64_t> filled(rows, 0);
  state_address_.resize(kinds_.states.size());
  for (size_t i = 0; i < kinds_.states.size(); ++i) {
    const StateKind& k = kinds_.states[i];
    std::vector<int64_t> layers_in_row(rows, 0), placed(rows, 0);
    for (int row : row_of[i]) ++layers_in_row[row];
    for (int row : row_of[i]) {
      state_address_[i].push_back({.row = row,
                                   .offset = filled[row] + placed[row]++ * k.record_bytes,
                                   .head_stride = layers_in_row[row] * k.record_bytes});
    }
    for (int row = 0; row < rows; ++row) filled[row] += layers_in_row[row] * layer_state_bytes(k);
  }
}

CacheCapacity capacity(const CachePlan& plan, int64_t memory_bytes, int64_t slots, int64_t context) {
  CacheCapacity c{.slots = slots};
  c.rows = (memory_bytes - slots * plan.slot_bytes()) / plan.row_bytes();
  const int64_t least = slots * plan.slot_bytes() + (slots * plan.state_rows() + 1) * plan.row_bytes();
  if (memory_bytes < least) {
    fail(ErrorCode::kUsage,
         "{} bytes of cache are too few for {} sequences: their chunk rows and states and one block of {} "
         "tokens "
         "need {}; use more memory or fewer sequences (--max-num-seqs)",
         memory_bytes, slots, plan.block_tokens(), least);
  }
  c.used_bytes = slots * plan.slot_bytes() + c.rows * plan.row_bytes();
  c.tokens = (c.rows - slots * plan.state_rows()) * plan.block_tokens();
  const int64_t each = (plan.blocks(context) + plan.state_rows()) * plan.row_bytes() + plan.slot_bytes();
  c.full_contexts = memory_bytes / each;
  return c;
}

}  // namespace perigee
