#include "cache/cached_sequence.h"

#include <algorithm>

#include "base/error.h"

namespace perigee {

namespace {
// Rows of a step that may stay undecided: a slot keeps 16 rows of an open chunk, these, and 3 conv inputs.
constexpr int64_t kMostUndecided = KdaSlot::kRing - kChunk - kConvInputs;
}  // namespace

CachedSequence::CachedSequence(CachePool& pool, PrefixTree* tree, PrefixScope scope,
                               std::vector<int32_t> tokens, int64_t reusable)
    : pool_(&pool),
      tree_(tree),
      scope_(std::move(scope)),
      tokens_(std::move(tokens)),
      prompt_(static_cast<int64_t>(tokens_.size())),
      cache_(pool) {
  if (!tree_) return;
  PrefixHit hit = tree_->match(scope_, std::span(tokens_).first(std::min(prompt_, reusable)));
  planned_ = tree_->plan_checkpoints(hit, prompt_);
  cached_ = hit.tokens();
  if (cached_ > 0) cache_ = SequenceCache(pool, std::move(hit.rows), hit.checkpoint);
}

CachedSequence::CachedSequence(const CachedSequence& other, SequenceCache cache)
    : pool_(other.pool_),
      tree_(other.tree_),
      scope_(other.scope_),
      tokens_(other.tokens_),
      prompt_(other.prompt_),
      cached_(other.cached_),
      cache_(std::move(cache)) {}

CachedSequence CachedSequence::fork() const {
  check(!prefilling(), "CachedSequence::fork: the prompt is computed");
  return CachedSequence(*this, cache_.fork());
}

int64_t CachedSequence::rows_to_finish_prompt() const {
  return cache_.rows_needed(prompt_ + 1, prompt_ + 1) + (tree_ ? pool_->plan().state_rows() : 0);
}

void CachedSequence::plan_checkpoint(int64_t position) {
  check(position > cache_.length() && position < prompt_ && position % kChunk == 0,
        "CachedSequence::plan_checkpoint: a chunk start that is still to come");
  const auto at = std::lower_bound(planned_.begin(), planned_.end(), position,
                                   [](const PrefixTree::Planned& p, int64_t x) { return p.position < x; });
  if (at == planned_.end() || at->position != position)
    planned_.insert(at, {position, CheckpointReason::kBranch});
}

CachedSequence::PromptStep CachedSequence::next_prompt_step(int64_t budget) const {
  const int64_t start = cache_.length(), end = std::min(prompt_, start + budget);
  PromptStep step{.count = end - start};
  if (planned_.empty() || end < planned_.front().position + kChunk) return step;
  // With more accepted tokens than this, the state would pass the planned position.
  const int64_t position = planned_.front().position, most = position + kChunk - 1;
  step.undecided = end - most;
  if (step.undecided <= kMostUndecided && step.undecided < step.count) return step;
  return {.count = (start < position ? position : most) - start};
}

bool CachedSequence::make_room(int64_t count, int64_t undecided) {
  const int64_t tokens = cache_.length() + count;
  const int64_t rows = cache_.rows_needed(tokens, tokens - undecided);
  return tree_ ? tree_->make_room(rows) : pool_->free_rows() >= rows;
}

void CachedSequence::stepped() {
  while (!planned_.empty() && planned_.front().position <= cache_.base()) {
    if (planned_.front().position == cache_.base()) keep(planned_.front().reason, false);
    planned_.erase(planned_.begin());
  }
}

void CachedSequence::leave() {
  if (tree_ && cache_.length() > 0) keep(CheckpointReason::kTurn, true);
}

void CachedSequence::keep(CheckpointReason reason, bool finished) {
  const int64_t told = static_cast<int64_t>(tokens_.size()), length = std::min(cache_.length(), told);
  check(cache_.length() <= told + (finished ? 0 : 1),
        "CachedSequence: a token was computed that append() was not told of");
  const std::span<const int32_t> known = std::span(tokens_).first(length);
  tree_->insert(scope_, known, cache_.rows(), finished);
  tree_->insert_checkpoint(scope_, known, cache_.checkpoint(), reason);
}

}  // namespace perigee
