#include "cache/prefix_tree.h"

#include <set>

#include "base/error.h"
#include "cache/checksum.h"
#include "cache/prefix_tree_nodes.h"

namespace perigee {

namespace {

// The last chunk start that leaves one token of a prompt to compute.
int64_t prompt_checkpoint(int64_t prompt) { return (prompt - 1) / kChunk * kChunk; }

uint64_t checksum_of(const CachePool& pool, const auto& rows) {
  const int64_t row_bytes = pool.plan().row_bytes();
  std::vector<uint8_t> bytes(row_bytes);
  uint64_t hash = kChecksumStart;
  for (const auto& r : rows) {
    pool.memory().download(bytes.data(), r->row.data(), row_bytes);
    hash = checksum(bytes.data(), row_bytes, hash);
  }
  return hash;
}

}  // namespace

PrefixTree::PrefixTree(CachePool& pool, const PrefixTreeOptions& options, RowStore* store)
    : pool_(pool), options_(options), store_(store) {}
PrefixTree::~PrefixTree() = default;

PrefixTree::Symbols PrefixTree::symbols(const PrefixScope& scope, std::span<const int32_t> tokens) const {
  Symbols out(tokens.begin(), tokens.end());
  for (const PrefixScope::Image& image : scope.images) {
    const int64_t end = std::min<int64_t>(image.first + image.tokens, static_cast<int64_t>(out.size()));
    for (int64_t p = image.first; p < end; ++p) {  // no token id is negative
      const uint64_t mixed = (image.hash + static_cast<uint64_t>(p - image.first)) * 0x9E3779B97F4A7C15u;
      out[p] = static_cast<int64_t>(mixed | (uint64_t{1} << 63));
    }
  }
  return out;
}

PrefixTree::Node* PrefixTree::root(const PrefixScope& scope, bool create) {
  const std::pair key(scope.adapter, scope.salt);
  if (const auto it = roots_.find(key); it != roots_.end()) return it->second.get();
  if (!create) return nullptr;
  return roots_.emplace(key, std::make_unique<Node>()).first->second.get();
}

PrefixTree::Place PrefixTree::find(Node* root, const Symbols& key) const {
  Place place{.path = {root}};
  const int64_t total = static_cast<int64_t>(key.size());
  while (place.matched < total) {
    Node* node = place.path.back();
    const auto child = node->children.find(key[place.matched]);
    if (child == node->children.end()) break;
    node = child->second.get();
    place.path.push_back(node);
    while (place.matched < std::min(total, node->end()) &&
           key[place.matched] == node->symbols[place.matched - node->start]) {
      ++place.matched;
    }
    if (place.matched < node->end()) break;
  }
  return place;
}

// The rows of the blocks that [0, position) touches: of each block the deepest node's, which has most of it.
PrefixTree::KeptRows PrefixTree::rows_of(const Place& place, int64_t position) const {
  const int64_t block = pool_.plan().block_tokens();
  KeptRows rows(pool_.plan().blocks(position));
  for (const Node* node : place.path) {
    if (node->start >= position) break;
    const int64_t end = std::min(node->end(), position), first = node->start / block;
    for (int64_t b = first; b * block < end; ++b) rows[b] = node->rows[b - first];
  }
  return rows;
}

// The last checkpoint up to `last` that has its state and its rows, and these rows.
std::pair<PrefixTree::Kept*, PrefixTree::KeptRows> PrefixTree::longest(const Place& place, int64_t last,
                                                                       bool in_pool) const {
  const auto there = [&](const KeptRows& rows) { return in_pool ? all_in_pool(rows) : all_available(rows); };
  for (auto node = place.path.rbegin(); node != place.path.rend(); ++node) {
    for (auto it = (*node)->checkpoints.upper_bound(last); it != (*node)->checkpoints.begin();) {
      Kept& kept = (--it)->second;
      if (!there(kept.rows)) continue;
      KeptRows rows = rows_of(place, kept.position);
      if (there(rows)) return {&kept, std::move(rows)};
    }
  }
  return {nullptr, {}};
}

PrefixHit PrefixTree::match(const PrefixScope& scope, std::span<const int32_t> tokens) {
  ++calls_;
  ++stats_.queries;
  stats_.query_tokens += static_cast<int64_t>(tokens.size());
  PrefixHit hit;
  Node* top = root(scope, false);
  if (!top || tokens.empty()) return hit;
  const Place place = find(top, symbols(scope, tokens));
  hit.matched = place.matched;
  const int64_t total = static_cast<int64_t>(tokens.size()), last = std::min(place.matched, total - 1);
  const auto [kept, rows] = longest(place, last, true);
  if (kept) {
    if (options_.debug && kept->checksum != checksum_of(pool_, kept->rows))
      fail(ErrorCode::kInternal, "the checkpoint at position {} is not what was stored", kept->position);
    ++kept->hits;
    kept->last_used = calls_;
    // It now is what an exact repeat hits, whatever it was made for.
    if (kept->position == prompt_checkpoint(total)) kept->reason = CheckpointReason::kPrompt;
    hit.checkpoint.position = kept->position;
    for (const auto& r : kept->rows) hit.checkpoint.rows.push_back(r->row);
    for (const auto& r : rows) hit.rows.push_back(r->row);
  }
  for (Node* node : place.path) {
    if (node->start < hit.tokens()) node->last_used = calls_;
  }
  hit.stored = hit.tokens();
  if (store_) {
    if (const Kept* available = longest(place, last, false).first) hit.stored = available->position;
  }
  stats_.hit_tokens += hit.tokens();
  return hit;
}

std::vector<PrefixTree::Planned> PrefixTree::plan_checkpoints(const PrefixHit& hit, int64_t prompt) const {
  std::map<int64_t, CheckpointReason> at;
  if (prompt < 1) return {};
  const int64_t last = prompt_checkpoint(prompt);
  if (const int64_t spacing = options_.checkpoint_spacing / kChunk * kChunk; spacing > 0) {
    for (int64_t p = (hit.tokens() / spacing + 1) * spacing; p + spacing / 2 < last; p += spacing)
      at[p] = CheckpointReason::kSpaced;
  }
  at[std::min(last, hit.matched / kChunk * kChunk)] = CheckpointReason::kBranch;
  at[last] = CheckpointReason::kPrompt;
  std::vector<Planned> out;
  for (const auto& [position, reason] : at) {
    if (position > hit.tokens()) out.push_back({position, reason});
  }
  return out;
}

// The node keeps [start, at); a new child takes the rest. Both hold the row that `at` falls into.
void PrefixTree::split(Node* node, int64_t at) {
  const int64_t block = pool_.plan().block_tokens(), first = node->start / block;
  auto lower = std::make_unique<Node>();
  lower->parent = node;
  lower->start = at;
  lower->last_used = node->last_used;
  lower->symbols.assign(node->symbols.begin() + (at - node->start), node->symbols.end());
  lower->rows.assign(node->rows.begin() + (at / block - first), node->rows.end());
  lower->children = std::exchange(node->children, {});
  for (auto& [symbol, child] : lower->children) child->parent = lower.get();
  while (!node->checkpoints.empty() && node->checkpoints.rbegin()->first > at)
    lower->checkpoints.insert(node->checkpoints.extract(std::prev(node->checkpoints.end())));
  node->symbols.resize(at - node->start);
  node->rows.resize((at - 1) / block - first + 1);
  const int64_t symbol = lower->symbols.front();
  node->children.emplace(symbol, std::move(lower));
}

void PrefixTree::insert(const PrefixScope& scope, std::span<const int32_t> tokens, std::span<const Row> rows,
                        bool finished) {
  ++calls_;
  const int64_t block = pool_.plan().block_tokens(), total = static_cast<int64_t>(tokens.size());
  check(static_cast<int64_t>(rows.size()) == pool_.plan().blocks(total),
        "PrefixTree::insert: one row per block");
  const Symbols key = symbols(scope, tokens);
  const Place place = find(root(scope, true), key);
  std::map<int64_t, std::shared_ptr<KeptRow>> known;  // this sequence's rows that the tree keeps, by block
  const auto keep = [&](int64_t b) {
    std::shared_ptr<KeptRow>& row = known[b];
    if (!row) row = std::make_shared<KeptRow>(pool_, rows[b]);
    return row;
  };
  const auto each_row = [&](const auto& visit) {
    for (Node* node : place.path) {
      for (size_t i = 0; i < node->rows.size(); ++i) {
        const int64_t b = node->start / block + static_cast<int64_t>(i);
        if (b * block < place.matched) visit(*node, node->rows[i], b);
      }
    }
  };
  each_row([&](Node& node, std::shared_ptr<KeptRow>& row, int64_t b) {
    node.last_used = calls_;
    if (row->row && row->row.id() == rows[b].id()) known[b] = row;
  });
  each_row([&](Node& node, std::shared_ptr<KeptRow>& row, int64_t b) {
    // The pool had lost it, and this sequence computed it again.
    if (!row->row && std::min(node.end(), (b + 1) * block) <= place.matched) row = keep(b);
  });
  Node* node = place.path.back();
  const int64_t matched = place.matched;
  if (matched < total) {
    if (matched < node->end()) split(node, matched);
    if (!node->parent || !node->children.empty()) {
      auto child = std::make_unique<Node>();
      child->parent = node;
      child->start = matched;
      child->last_used = calls_;
      node = node->children.emplace(key[matched], std::move(child)).first->second.get();
    }
    // A leaf grows: its last row gives way to the longer one, which may be the same.
    node->symbols.insert(node->symbols.end(), key.begin() + matched, key.end());
    for (int64_t b = matched / block; b < static_cast<int64_t>(rows.size()); ++b) {
      const size_t i = b - node->start / block;
      if (i == node->rows.size()) node->rows.push_back(nullptr);
      if (!node->rows[i] || !node->rows[i]->row || node->rows[i]->row.id() != rows[b].id())
        node->rows[i] = keep(b);
    }
  }
  if (!store_) return;
  for (size_t i = 0; i < node->rows.size(); ++i) {
    const int64_t b = node->start / block + static_cast<int64_t>(i);
    // Nobody appends to a full row; nor to the last one when its owner is done and nobody else holds it.
    const bool full = (b + 1) * block <= total;
    if (full ||
        (finished && (b + 1) * block > total && b * block < total && pool_.references(rows[b].id()) <= 2 &&
         node->rows[i]->row && node->rows[i]->row.id() == rows[b].id()))
      copy_out(*node->rows[i]);
  }
}

bool PrefixTree::insert_checkpoint(const PrefixScope& scope, std::span<const int32_t> tokens,
                                   Checkpoint checkpoint, CheckpointReason reason) {
  const int64_t position = checkpoint.position;
  Node* top = root(scope, false);
  if (!top || position == 0 || position > static_cast<int64_t>(tokens.size())) return false;
  ++calls_;
  const Place place = find(top, symbols(scope, tokens.first(position)));
  if (place.matched < position) return false;
  Node* node = place.path.back();
  Kept& kept = node->checkpoints[position];
  const bool known = kept.position != 0;
  kept.position = position;
  kept.last_used = calls_;
  if (!known || reason == CheckpointReason::kPrompt) kept.reason = reason;
  if (known && all_in_pool(kept.rows)) return true;
  kept.rows.clear();
  for (Row& row : checkpoint.rows) kept.rows.push_back(std::make_shared<KeptRow>(pool_, std::move(row)));
  if (options_.debug) kept.checksum = checksum_of(pool_, kept.rows);
  if (reason == CheckpointReason::kTurn) {
    // The turn before, if this is all that went on from it.
    for (auto it = node->checkpoints.find(position); it != node->checkpoints.begin();) {
      if ((--it)->second.reason != CheckpointReason::kTurn) continue;
      if (it->second.hits <= 1) node->checkpoints.erase(it);
      break;
    }
  }
  for (const auto& r : kept.rows) copy_out(*r);
  keep_share();
  const auto it = node->checkpoints.find(position);
  return it != node->checkpoints.end() && all_in_pool(it->second.rows);
}

void PrefixTree::for_each(const std::function<void(Node&)>& visit) const {
  std::vector<Node*> open;
  for (const auto& [key, node] : roots_) open.push_back(node.get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (const auto& [symbol, child] : node->children) open.push_back(child.get());
    visit(*node);
  }
}

void PrefixTree::clear() { roots_.clear(); }

void PrefixTree::clear_adapter(const std::string& adapter) {
  std::erase_if(roots_, [&](const auto& entry) {
    const std::string& name = entry.first.first;
    return name == adapter || name.starts_with(adapter + "@");
  });
}

PrefixTree::Stats PrefixTree::stats() const {
  Stats s = stats_;
  for_each([&](Node& node) {
    for (const auto& [position, kept] : node.checkpoints) s.checkpoints += all_in_pool(kept.rows);
  });
  if (store_) s.stored_rows = store_->rows() - store_->free_rows();
  return s;
}

void PrefixTree::count_references(std::vector<int64_t>& references) const {
  std::set<const KeptRow*> seen;
  const auto count = [&](const KeptRows& rows) {
    for (const auto& r : rows) {
      if (r->row && seen.insert(r.get()).second) ++references[r->row.id()];
    }
  };
  for_each([&](Node& node) {
    count(node.rows);
    for (const auto& [position, kept] : node.checkpoints) count(kept.rows);
  });
}

void PrefixTree::check_integrity(std::vector<int64_t>& references) const {
  const int64_t block = pool_.plan().block_tokens();
  for_each([&](Node& node) {
    for (const auto& [symbol, child] : node.children) {
      check(child->parent == &node && child->start == node.end() && child->symbols.front() == symbol,
            "prefix tree: a child goes on where its parent ends");
    }
    if (node.parent) {
      check(!node.symbols.empty(), "prefix tree: an edge has tokens");
      check(static_cast<int64_t>(node.rows.size()) == (node.end() - 1) / block - node.start / block + 1,
            "prefix tree: an edge has the rows of its blocks");
    }
    for (const auto& [position, kept] : node.checkpoints) {
      check(position == kept.position && position > node.start && position <= node.end() &&
                position % kChunk == 0,
            "prefix tree: a checkpoint stands on its edge");
      check(static_cast<int64_t>(kept.rows.size()) == pool_.plan().state_rows(),
            "prefix tree: a checkpoint has all its rows");
    }
  });
  std::vector<int64_t> own(pool_.rows(), 0);
  count_references(own);
  int64_t alone = 0;
  for (int64_t row = 0; row < pool_.rows(); ++row) {
    alone += own[row] > 0 && own[row] == pool_.references(static_cast<RowId>(row));
    references[row] += own[row];
  }
  check(alone == evictable_rows(), "prefix tree: the pool knows which rows the tree alone holds");
  for (const auto& [ticket, fetch] : fetches_) {
    for (const auto& [kept, row] : fetch.rows) ++references[row.id()];
  }
  if (store_) store_->count_references(references);
}

}  // namespace perigee
