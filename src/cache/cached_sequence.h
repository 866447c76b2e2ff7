// CachedSequence: how a request uses the prefix tree. It starts from the longest hit, cuts the prompt so that
// checkpoints fall where the tree wants them, and leaves what it computed behind when it ends.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cache/prefix_tree.h"
#include "cache/sequence_cache.h"

namespace perigee {

class CachedSequence {
 public:
  // `tokens` are to be computed before anything is sampled: a prompt, or all there was before a preemption.
  // Without a tree nothing is reused or left; of the tree at most `reusable` tokens are. Needs a free slot.
  CachedSequence(CachePool& pool, PrefixTree* tree, PrefixScope scope, std::vector<int32_t> tokens,
                 int64_t reusable = std::numeric_limits<int64_t>::max());
  // A second sequence with the same tokens, past the prompt; see SequenceCache::fork.
  CachedSequence fork() const;

  SequenceCache& cache() { return cache_; }
  const SequenceCache& cache() const { return cache_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t prompt_tokens() const { return prompt_; }
  int64_t cached_tokens() const { return cached_; }  // of the prompt, found in the tree
  bool prefilling() const { return cache_.length() < prompt_; }
  void append(int32_t token) { tokens_.push_back(token); }

  // The most rows it can hold at once with `length` tokens: admission counts these.
  static int64_t most_rows(const CachePlan& plan, int64_t length) {
    return plan.blocks(length) + 1 + 2 * plan.state_rows();
  }

  // Rows that the rest of the prompt takes, one token more, and a state to leave in a tree.
  int64_t rows_to_finish_prompt() const;

  // Asks for one more checkpoint, for another prompt that parts from this one; a multiple of kChunk after
  // cache().length().
  void plan_checkpoint(int64_t position);

  // The next prompt tokens to compute, at most `budget`: of the `count` from cache().length() on, the last
  // `undecided` go to Batch::add as drafts, so that the state stays where a checkpoint is due.
  struct PromptStep {
    int64_t count = 0, undecided = 0;
  };
  PromptStep next_prompt_step(int64_t budget) const;
  // Evicts until a step of `count` tokens, the last `undecided` as drafts, has its rows; false when all rows
  // are in use.
  bool make_room(int64_t count, int64_t undecided = 0);

  // To be called after every step with accepted tokens in the cache, and at most one more, computed before it
  // is known: leaves checkpoints that are due.
  void stepped();
  // To be called at the end (finished, cancelled, preempted): all tokens in the cache stay in the tree, with
  // the state at the last chunk start.
  void leave();

 private:
  CachedSequence(const CachedSequence& other, SequenceCache cache);
  void keep(CheckpointReason reason, bool finished);

  CachePool* pool_;
  PrefixTree* tree_;
  PrefixScope scope_;
  std::vector<int32_t> tokens_;
  int64_t prompt_, cached_ = 0;
  std::vector<PrefixTree::Planned> planned_;  // still to come
  SequenceCache cache_;
};

}  // namespace perigee
