// PrefixCache: a prefix tree with the tiers behind it, as options ask for them.
#pragma once

#include <optional>

#include "cache/prefix_tree.h"
#include "cache/row_store.h"

namespace perigee {

struct PrefixCacheOptions {
  bool enabled = true;
  PrefixTreeOptions tree = {};
  RowStoreOptions tiers = {};  // no bytes: none
};

class PrefixCache {
 public:
  // The pool outlives it. Throws what RowStore does.
  PrefixCache(CachePool& pool, const PrefixCacheOptions& options) {
    if (!options.enabled) return;
    if (options.tiers.memory_bytes > 0 || options.tiers.file_bytes > 0) store_.emplace(pool, options.tiers);
    tree_.emplace(pool, options.tree, store_ ? &*store_ : nullptr);
  }

  PrefixTree* tree() { return tree_ ? &*tree_ : nullptr; }  // null: nothing is reused

 private:
  std::optional<RowStore> store_;  // first, so that it outlives the tree
  std::optional<PrefixTree> tree_;
};

}  // namespace perigee
