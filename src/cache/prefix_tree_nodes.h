// The nodes of a PrefixTree; for its own sources.
#pragma once

#include <algorithm>
#include <limits>

#include "cache/prefix_tree.h"

namespace perigee {

// A row that the tree keeps: in the pool, as a copy in the store, or both. Two nodes that part inside a block
// share it.
struct PrefixTree::KeptRow {
  KeptRow(CachePool& pool, Row row) : pool(pool) { hold(std::move(row)); }
  KeptRow(const KeptRow&) = delete;
  ~KeptRow() {
    hold(Row());
    forget_copy();
  }
  // In place of the row that it has; empty: none.
  void hold(Row other) {
    if (row) pool.unmark_kept(row.id());
    row = std::move(other);
    if (row) pool.mark_kept(row.id());
  }
  void forget_copy() {
    if (copy) store->drop(std::exchange(copy, 0));
  }
  bool in_store() const { return copy != 0 && store->stored(copy); }
  bool available() const { return row || in_store(); }

  CachePool& pool;
  Row row;  // empty: not in the pool; to be changed by hold() alone
  RowStore* store = nullptr;
  RowStore::Key copy = 0;  // 0: none
};

struct PrefixTree::Kept {
  int64_t position = 0;
  KeptRows rows;  // the state
  CheckpointReason reason = CheckpointReason::kPrompt;
  int64_t hits = 0, last_used = 0;
  uint64_t checksum = 0;  // with options.debug
};

struct PrefixTree::Node {
  Node* parent = nullptr;
  int64_t start = 0;
  Symbols symbols;                                    // of positions [start, end)
  KeptRows rows;                                      // of the blocks that they touch
  std::map<int64_t, Kept> checkpoints;                // by position, in (start, end]
  std::map<int64_t, std::unique_ptr<Node>> children;  // by first symbol
  int64_t last_used = 0;
  bool holds = false;  // something of it or below it is in the pool: as PrefixTree::cheapest found it

  int64_t end() const { return start + static_cast<int64_t>(symbols.size()); }
  // How many of the rows stay when positions from `cut` on go.
  int64_t rows_before(int64_t cut, int64_t block) const {
    return cut <= start ? 0 : (cut - 1) / block - start / block + 1;
  }
};

// How far a key is known: the nodes from the root to the last one that shares a symbol with it.
struct PrefixTree::Place {
  std::vector<Node*> path;
  int64_t matched = 0;
};

inline bool all_in_pool(const auto& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const auto& r) { return static_cast<bool>(r->row); });
}
inline bool all_available(const auto& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const auto& r) { return r->available(); });
}

}  // namespace perigee
