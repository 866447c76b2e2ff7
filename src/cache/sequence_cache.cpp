#include "cache/sequence_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cache/break_reuse.h"
#include "cache/poison.h"

namespace perigee {

SequenceCache::SequenceCache(CachePool& pool)
    : pool_(&pool), slot_layout_(pool.shape().kda_heads), base_(pool.shape().kda_layers, 0) {
  int indexed = 0;
  for (bool index : pool.shape().attention_has_index) index_layer_.push_back(index ? indexed++ : -1);
}

namespace {

std::shared_ptr<CachePool> pool_for_one(CacheShape shape, Memory& memory, int64_t tokens) {
  if (shape.attention_has_index.empty()) shape.attention_has_index.push_back(false);  // a plan has pages
  const CachePlan plan(cache_kinds(shape));
  return std::make_shared<CachePool>(shape, plan, plan.blocks(tokens) + 2 * plan.state_rows(), 1, memory);
}

}  // namespace

SequenceCache::SequenceCache(const CacheShape& shape, Memory& memory, int64_t tokens)
    : SequenceCache(pool_for_one(shape, memory, tokens)) {}

SequenceCache::SequenceCache(std::shared_ptr<CachePool> own_pool) : SequenceCache(*own_pool) {
  own_pool_ = std::move(own_pool);
  take_slot();
  for (int64_t i = 0; i < pool_->plan().state_rows(); ++i) {
    state_.push_back(take_row());
    pool_->memory().fill(state_.back().data(), 0, pool_->plan().row_bytes());
  }
}

SequenceCache& SequenceCache::operator=(SequenceCache&& other) noexcept {
  if (this != &other) {  // not member by member: the rows go before their pool
    std::destroy_at(this);
    std::construct_at(this, std::move(other));
  }
  return *this;
}

SequenceCache::SequenceCache(CachePool& pool, std::vector<Row> rows, const Checkpoint& checkpoint)
    : SequenceCache(pool) {
  const int64_t position = checkpoint.position;
  check(static_cast<int64_t>(rows.size()) == blocks(position),
        "SequenceCache: one row per block of the prefix");
  if (position == 0) return;
  for (Row& row : rows) add_row(std::move(row));
  length_ = stored_base_ = position;
  base_.assign(base_.size(), position);
  state_ = checkpoint.rows;
  state_has_conv_inputs_ = true;
  take_slot();
  copy_conv_inputs(position, ConvInputs::kRestore);
  if (reuse_broken()) state_.clear();
}

SequenceCache SequenceCache::fork() const {
  SequenceCache copy(*pool_);
  for (const Row& row : rows()) copy.add_row(row);
  copy.state_ = state_;
  copy.state_has_conv_inputs_ = state_has_conv_inputs_;
  copy.base_ = base_;
  copy.stored_base_ = stored_base_;
  copy.length_ = length_;
  if (slot_) {
    copy.take_slot();
    pool_->memory().copy(copy.slot_.data(), slot_.data(), pool_->plan().slot_bytes());
  }
  return copy;
}

void SequenceCache::upload(const SequenceCache& other) {
  check(length_ == 0 && other.pool_->memory().on_host(),
        "SequenceCache::upload: from the host to an empty cache");
  reserve(other.length_, other.base());
  Memory& memory = pool_->memory();
  const int64_t bytes = pool_->plan().row_bytes();
  const auto rows = [&](const std::vector<Row>& to, const std::vector<Row>& from) {
    for (size_t i = 0; i < from.size(); ++i) memory.upload(to[i].data(), from[i].data(), bytes);
  };
  rows(rows_, other.rows_);
  std::vector<Row>& state = next_state_.empty() ? state_ : next_state_;
  rows(state, other.state_);
  if (slot_) memory.upload(slot_.data(), other.slot_.data(), pool_->plan().slot_bytes());
  base_ = other.base_;
  set_length(other.length_);
}

bool SequenceCache::copies_last_row(int64_t tokens) const {
  return tokens > length_ && length_ % pool_->plan().block_tokens() != 0 && !owns_last_row_;
}

bool SequenceCache::needs_state_rows(int64_t accepted) const {
  if (base_.empty() || accepted / kChunk * kChunk <= stored_base_ || !next_state_.empty()) return false;
  return state_.empty() || std::any_of(state_.begin(), state_.end(), [](const Row& r) { return r.shared(); });
}

int64_t SequenceCache::rows_needed(int64_t tokens, int64_t accepted) const {
  return std::max<int64_t>(0, blocks(tokens) - static_cast<int64_t>(rows_.size())) +
         (copies_last_row(tokens) ? 1 : 0) + (needs_state_rows(accepted) ? pool_->plan().state_rows() : 0);
}

void SequenceCache::reserve(int64_t tokens, int64_t accepted) {
  const CachePlan& plan = pool_->plan();
  const int64_t needed = rows_needed(tokens, accepted);
  if (needed > pool_->free_rows()) {
    fail(ErrorCode::kInternal, "SequenceCache::reserve: {} cache rows needed, {} of {} free", needed,
         pool_->free_rows(), pool_->rows());
  }
  if (!slot_ && plan.slot_bytes() > 0) take_slot();
  if (copies_last_row(tokens)) {
    const int64_t block = blocks(length_) - 1;
    const int64_t pages =
        (length_ - block * plan.block_tokens() + plan.page_tokens() - 1) / plan.page_tokens();
    Row copy = take_row();
    pool_->memory().copy(copy.data(), rows_[block].data(), pages * plan.page_bytes());
    rows_[block] = std::move(copy);
    owns_last_row_ = true;
    point_pages(block);
    drop(length_, std::min(block * plan.block_tokens() + pages * plan.page_tokens(),
                           (block + 1) * plan.block_tokens()));
  }
  while (static_cast<int64_t>(rows_.size()) < blocks(tokens)) {
    add_row(take_row());
    owns_last_row_ = true;
  }
  if (needs_state_rows(accepted)) {
    for (int64_t i = 0; i < plan.state_rows(); ++i) next_state_.push_back(take_row());
  }
}

void SequenceCache::set_length(int64_t length) {
  for (int64_t base : base_) check(length >= base, "a sequence cannot shrink below a stored chunk start");
  if (!base_.empty() && base_[0] != stored_base_) {
    check(std::all_of(base_.begin(), base_.end(), [&](int64_t b) { return b == base_[0]; }),
          "all KDA layers stand at the same chunk start");
    if (!next_state_.empty()) state_ = std::exchange(next_state_, {});
    stored_base_ = base_[0];
    state_has_conv_inputs_ = false;
  }
  if (length < length_) drop(length, length_);
  length_ = length;
}

void SequenceCache::drop([[maybe_unused]] int64_t from, [[maybe_unused]] int64_t to) {
#ifdef PERIGEE_TEST_HOOKS
  const CacheShape& shape = pool_->shape();
  const int64_t latent = latent_bytes(shape.latent_format), D = int64_t{shape.kda_heads} * kKdaHead;
  Memory& memory = pool_->memory();
  for (int64_t p = from; p < to; ++p) {
    const int in_page = static_cast<int>(p % kPageTokens);
    if (pages_.empty()) break;  // alone, and only its KDA layers are used
    for (size_t layer = 0; layer < shape.attention_has_index.size(); ++layer) {
      const PageTable pages = this->pages(static_cast<int>(layer));
      poison(memory, pages.latent(p / kPageTokens) + in_page * latent, latent);
      if (!pages.has_index) continue;
      uint8_t* page = pages.index_key(p / kPageTokens);
      poison(memory, page + index_value_offset(shape.index_format, in_page),
             index_key_value_bytes(shape.index_format));
      poison(memory, page + index_scale_offset(shape.index_format, in_page),
             index_key_scale_bytes(shape.index_format));
    }
  }
  // The ring holds the last positions alone: those before `from` may lie where a dropped one would.
  for (int64_t p = from; p < std::min(to, base() + KdaSlot::kRing - kConvInputs); ++p) {
    const int64_t at = p % KdaSlot::kRing;
    for (int layer = 0; layer < shape.kda_layers; ++layer) {
      const KdaSlot slot = this->slot(layer);
      poison(memory, slot.conv_input + at * 3 * D, 3 * D * sizeof(bf16));
      poison(memory, slot.k + at * D, D * sizeof(bf16));
      poison(memory, slot.G + at * D, D * sizeof(float));
      poison(memory, slot.w + at * D, D * sizeof(float));
      poison(memory, slot.T + at * shape.kda_heads * kChunk, shape.kda_heads * kChunk * sizeof(float));
    }
  }
#endif
}

PageTable SequenceCache::pages(int attention_layer) const {
  const CacheShape& shape = pool_->shape();
  const CachePlan& plan = pool_->plan();
  const int index = index_layer_[attention_layer];
  return {.page = pages_.data(),
          .latent_offset = plan.page_offset(kLatentKind, attention_layer, 0),
          .index_offset = index < 0 ? 0 : plan.page_offset(kIndexKeyKind, index, 0),
          .has_index = index >= 0,
          .latent_format = shape.latent_format,
          .index_format = shape.index_format,
          .latent_scale = shape.latent_scale};
}

KdaSlot SequenceCache::slot(int kda_layer) {
  const CachePlan::StateAddress& at = pool_->plan().state_address(kKdaKind, kda_layer);
  const int64_t stride = at.head_stride / static_cast<int64_t>(sizeof(float));
  const auto state_in = [&](const std::vector<Row>& rows) {
    return rows.empty() ? nullptr : reinterpret_cast<float*>(rows[at.row].data() + at.offset);
  };
  uint8_t* rows = slot_.data() + kda_layer * slot_layout_.bytes;
  KdaSlot slot{.state = state_in(state_),
               .state_stride = stride,
               .stored = state_in(next_state_.empty() ? state_ : next_state_),
               .stored_stride = stride,
               .base = &base_[kda_layer],
               .conv_input = reinterpret_cast<bf16*>(rows + slot_layout_.conv_input),
               .k = reinterpret_cast<bf16*>(rows + slot_layout_.k),
               .G = reinterpret_cast<float*>(rows + slot_layout_.G),
               .w = reinterpret_cast<float*>(rows + slot_layout_.w),
               .T = reinterpret_cast<float*>(rows + slot_layout_.T)};
  if (!slot.state) {
    slot.state = pool_->zero_state();
    slot.state_stride = 0;
  }
  if (!slot.stored) slot.stored_stride = 0;
  return slot;
}

Checkpoint SequenceCache::checkpoint() {
  Checkpoint out{.position = base(), .rows = state_};
  if (state_.empty() || std::exchange(state_has_conv_inputs_, true)) return out;
  copy_conv_inputs(out.position, ConvInputs::kKeep);
  return out;
}

void SequenceCache::copy_conv_inputs(int64_t position, ConvInputs direction) {
  const CacheShape& shape = pool_->shape();
  const int64_t D = int64_t{shape.kda_heads} * kKdaHead, bytes = kKdaHead * sizeof(bf16);
  std::vector<PieceCopy> pieces;
  for (int layer = 0; layer < shape.kda_layers; ++layer) {
    const CachePlan::StateAddress& at = pool_->plan().state_address(kKdaKind, layer);
    uint8_t* record = state_[at.row].data() + at.offset + kKdaStateBytes;  // of head 0
    const KdaSlot slot = this->slot(layer);
    for (int i = 0; i < kConvInputs; ++i) {
      const int64_t ring = (position - kConvInputs + i) % KdaSlot::kRing;
      for (int part = 0; part < 3; ++part) {
        PieceCopy piece{.to = record + (i * 3 + part) * bytes,
                        .from = slot.conv_input + (ring * 3 + part) * D,
                        .bytes = bytes,
                        .count = shape.kda_heads,
                        .to_stride = at.head_stride,
                        .from_stride = bytes};
        if (direction == ConvInputs::kRestore) {
          piece.from = std::exchange(piece.to, const_cast<void*>(piece.from));
          std::swap(piece.from_stride, piece.to_stride);
        }
        pieces.push_back(piece);
      }
    }
  }
  pool_->memory().copy(pieces);
}

void SequenceCache::count_references(std::vector<int64_t>& references) const {
  for (const std::vector<Row>* rows : {&rows_, &state_, &next_state_}) {
    for (const Row& row : *rows) ++references[row.id()];
  }
}

Row SequenceCache::take_row() {
  Row row = pool_->take_row();
  check(static_cast<bool>(row), "SequenceCache: a free row");
  return row;
}

void SequenceCache::take_slot() {
  if (pool_->plan().slot_bytes() == 0) return;
  slot_ = pool_->take_slot();
  if (!slot_) fail(ErrorCode::kInternal, "SequenceCache: all {} slots are in use", pool_->slots());
}

void SequenceCache::add_row(Row row) {
  rows_.push_back(std::move(row));
  owns_last_row_ = false;
  pages_.resize(static_cast<int64_t>(rows_.size()) * pool_->plan().pages_per_row());
  point_pages(static_cast<int64_t>(rows_.size()) - 1);
}

// The one place where blocks become page addresses.
void SequenceCache::point_pages(int64_t block) {
  const CachePlan& plan = pool_->plan();
  for (int64_t page = 0; page < plan.pages_per_row(); ++page)
    pages_[block * plan.pages_per_row() + page] = rows_[block].data() + page * plan.page_bytes();
}

}  // namespace perigee
