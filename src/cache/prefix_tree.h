// PrefixTree: which prefixes lie in which rows. A radix tree over token ids with rows on its edges and
// checkpoints at some of its points; a hit needs both. It decides which checkpoints are worth keeping and
// what goes when rows run out.
//
// Contract: match() → compute the rest on a SequenceCache made of the hit → insert() what was computed. Rows
// are counted references, so nothing that a live sequence uses can be freed under it. A row that a node holds
// for a block has all tokens of that block up to the node's end; whoever goes on inside it copies it first
// (SequenceCache does). Reads no clock: recency counts calls.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/checkpoint.h"
#include "cache/row_store.h"

namespace perigee {

// What a prefix depends on besides its token ids. Prefixes of different scopes never meet.
struct PrefixScope {
  std::string adapter;  // name and version of the LoRA adapter; empty: the base model
  std::string salt;     // the request's cache_salt
  struct Image {
    int64_t first = 0, tokens = 0;  // placeholder positions
    uint64_t hash = 0;              // of the pixels
  };
  std::vector<Image> images;  // ascending, not overlapping
};

enum class CheckpointReason : uint8_t {
  kPrompt,  // so that an exact repeat of the prompt hits
  kTurn,    // the end of a finished turn; replaces that of the turn before
  kBranch,  // where prompts part, the second time that is seen
  kSpaced,  // thinly along a long prefix
};

struct PrefixHit {
  std::vector<Row> rows;  // one per block that the cached positions touch
  Checkpoint checkpoint;  // at position `tokens()`
  int64_t matched = 0;    // positions that the tree knows, ≥ tokens(): where the prompt leaves it
  int64_t stored = 0;     // positions that a fetch() would make a hit, ≥ tokens()

  int64_t tokens() const { return checkpoint.position; }  // positions that need not be computed
};

struct PrefixTreeOptions {
  double checkpoint_share = 0.25;     // of the pool's rows, at most
  int64_t checkpoint_spacing = 4096;  // tokens between checkpoints along a long prefix; 0: none
  bool debug = false;                 // checkpoints carry checksums, compared at every hit; the engine
                                      // checks integrity at every step, not only when idle
};

class PrefixTree {
 public:
  // With a store, what is evicted comes to lie there: full rows and checkpoints are copied out as they are
  // inserted. The store must outlive the tree.
  explicit PrefixTree(CachePool& pool, const PrefixTreeOptions& options = {}, RowStore* store = nullptr);
  ~PrefixTree();
  const PrefixTreeOptions& options() const { return options_; }

  // The longest hit in the pool that leaves at least one of the tokens to compute.
  PrefixHit match(const PrefixScope& scope, std::span<const int32_t> tokens);

  // Where the prefill of a prompt with this hit should leave checkpoints: ascending multiples of kChunk in
  // (hit.tokens(), prompt). A step serves one by ending less than kChunk accepted tokens after it.
  struct Planned {
    int64_t position = 0;
    CheckpointReason reason = CheckpointReason::kPrompt;
  };
  std::vector<Planned> plan_checkpoints(const PrefixHit& hit, int64_t prompt) const;

  // Starts to bring back from the store what match() said is there. Nothing of it is visible before all has
  // come; then match() hits it. Returns a ticket, or 0 when the pool has no room or nothing is to be brought.
  int64_t fetch(const PrefixScope& scope, std::span<const int32_t> tokens);
  bool arrived(int64_t ticket) const { return !fetches_.contains(ticket); }
  // Takes note of what the store has completed; to be called once a step. wait() does so until nothing is
  // left.
  void poll();
  void wait();

  // Keeps the tokens with the rows of their blocks, as far as they are not known yet. Later tokens may be
  // appended to the last row by its owner, unless `finished`.
  void insert(const PrefixScope& scope, std::span<const int32_t> tokens, std::span<const Row> rows,
              bool finished = false);
  // Keeps a checkpoint inside a prefix that was inserted; `tokens` may go on after it. False when the prefix
  // is gone again or the checkpoint is not worth its place.
  bool insert_checkpoint(const PrefixScope& scope, std::span<const int32_t> tokens, Checkpoint checkpoint,
                         CheckpointReason reason);

  // Drops what saves the fewest tokens per byte, old before new, leaves first, until the pool has this many
  // free rows; false when it cannot, since all that is left is in use.
  bool make_room(int64_t rows);
  // Rows that make_room could free.
  int64_t evictable_rows() const { return pool_.kept_rows(); }
  // Forgets everything (new weights, /reset_prefix_cache), or all versions of what an adapter left.
  void clear();
  void clear_adapter(const std::string& adapter);

  struct Stats {
    int64_t queries = 0, query_tokens = 0, hit_tokens = 0;
    int64_t checkpoints = 0;  // now in the pool
    int64_t stored_rows = 0;  // now in the store
    int64_t evicted_rows = 0;
  };
  Stats stats() const;

  // Adds the tree's references to references[row], for CachePool::check_integrity; throws Error{kInternal}
  // when the tree contradicts itself.
  void check_integrity(std::vector<int64_t>& references) const;

 private:
  struct KeptRow;
  struct Kept;
  struct Node;
  struct Place;
  using KeptRows = std::vector<std::shared_ptr<KeptRow>>;
  using Symbols = std::vector<int64_t>;

  Symbols symbols(const PrefixScope& scope, std::span<const int32_t> tokens) const;
  Node* root(const PrefixScope& scope, bool create);
  Place find(Node* root, const Symbols& key) const;
  KeptRows rows_of(const Place& place, int64_t position) const;
  std::pair<Kept*, KeptRows> longest(const Place& place, int64_t last, bool in_pool) const;
  void split(Node* node, int64_t at);
  void count_references(std::vector<int64_t>& references) const;
  void for_each(const std::function<void(Node&)>& visit) const;

  // prefix_eviction.cpp
  struct Victim;
  int64_t checkpoint_before(const Node& node, int64_t position) const;
  double value(const Node& node, const Kept& kept, int64_t rows) const;
  int64_t freed_by_dropping(const Node& node, int64_t from) const;
  void keep_share();
  Victim cheapest() const;
  void drop(const Victim& victim);
  void cut_off(Node* node, int64_t cut);
  void copy_out(KeptRow& row);
  bool make_store_room();

  CachePool& pool_;
  PrefixTreeOptions options_;
  RowStore* store_;
  Stats stats_;
  int64_t calls_ = 0;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Node>> roots_;  // by adapter and salt
  struct Fetch {
    int64_t coming = 0;
    std::vector<std::pair<std::shared_ptr<KeptRow>, Row>> rows;  // handed to the tree when all have come
    bool whole = true;
  };
  std::map<int64_t, Fetch> fetches_;               // by ticket
  std::multimap<RowStore::Key, int64_t> awaited_;  // row → tickets
  int64_t next_ticket_ = 1;
};

}  // namespace perigee
