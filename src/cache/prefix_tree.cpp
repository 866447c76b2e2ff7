#include "cache/prefix_tree.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cache/checksum.h"

namespace perigee {

struct PrefixTree::Kept {
  Checkpoint checkpoint;
  CheckpointReason reason = CheckpointReason::kPrompt;
  int64_t hits = 0, last_used = 0;
  uint64_t checksum = 0;  // with options.debug
};

struct PrefixTree::Node {
  Node* parent = nullptr;
  int64_t start = 0;
  Symbols symbols;                                    // of positions [start, end)
  std::vector<Row> rows;                              // of the blocks that they touch
  std::map<int64_t, Kept> checkpoints;                // by position, in (start, end]
  std::map<int64_t, std::unique_ptr<Node>> children;  // by first symbol
  int64_t last_used = 0;

  int64_t end() const { return start + static_cast<int64_t>(symbols.size()); }
  // Up to its last checkpoint; a leaf's tokens after it serve no hit.
  int64_t used_end() const { return checkpoints.empty() ? start : checkpoints.rbegin()->first; }
};

// How far a key is known: the nodes from the root to the last one that shares a symbol with it.
struct PrefixTree::Place {
  std::vector<Node*> path;
  int64_t matched = 0;
};

// What could go next: a checkpoint, or (position −1) a leaf's end that no checkpoint stands behind.
struct PrefixTree::Victim {
  Node* node = nullptr;
  int64_t position = -1;
  double value = std::numeric_limits<double>::infinity();
};

namespace {

// The last chunk start that leaves one token of a prompt to compute.
int64_t prompt_checkpoint(int64_t prompt) { return (prompt - 1) / kChunk * kChunk; }

uint64_t checksum_of(const Checkpoint& checkpoint, int64_t row_bytes) {
  uint64_t hash = kChecksumStart;
  for (const Row& row : checkpoint.rows) hash = checksum(row.data(), row_bytes, hash);
  return hash;
}

int64_t freed_by_dropping(const CachePool& pool, std::span<const Row> rows) {
  return std::count_if(rows.begin(), rows.end(), [&](const Row& r) { return pool.references(r.id()) == 1; });
}

// Rows of a leaf's end that go when its symbols from `cut` on go.
template <typename Node>
std::span<const Row> rows_after(const Node& node, int64_t cut, int64_t block) {
  const int64_t kept = cut == node.start ? 0 : (cut - 1) / block - node.start / block + 1;
  return std::span<const Row>(node.rows).subspan(kept);
}

}  // namespace

PrefixTree::PrefixTree(CachePool& pool, const PrefixTreeOptions& options) : pool_(pool), options_(options) {}
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

PrefixHit PrefixTree::match(const PrefixScope& scope, std::span<const int32_t> tokens) {
  ++calls_;
  ++stats_.queries;
  stats_.query_tokens += static_cast<int64_t>(tokens.size());
  PrefixHit hit;
  Node* top = root(scope, false);
  if (!top || tokens.empty()) return hit;
  const Place place = find(top, symbols(scope, tokens));
  hit.matched = place.matched;
  const int64_t last = std::min<int64_t>(place.matched, static_cast<int64_t>(tokens.size()) - 1);
  if (pool_.plan().state_rows() == 0) {
    hit.checkpoint.position = last / kChunk * kChunk;
  } else {
    for (auto node = place.path.rbegin(); node != place.path.rend(); ++node) {
      auto it = (*node)->checkpoints.upper_bound(last);
      if (it == (*node)->checkpoints.begin()) continue;
      Kept& kept = std::prev(it)->second;
      if (options_.debug && kept.checksum != checksum_of(kept.checkpoint, pool_.plan().row_bytes())) {
        fail(ErrorCode::kInternal, "the checkpoint at position {} is not what was stored",
             kept.checkpoint.position);
      }
      ++kept.hits;
      kept.last_used = calls_;
      // It now is what an exact repeat hits, whatever it was made for.
      if (kept.checkpoint.position == prompt_checkpoint(static_cast<int64_t>(tokens.size())))
        kept.reason = CheckpointReason::kPrompt;
      hit.checkpoint = kept.checkpoint;
      break;
    }
  }
  const int64_t block = pool_.plan().block_tokens(), position = hit.tokens();
  hit.rows.resize(pool_.plan().blocks(position));
  for (Node* node : place.path) {
    if (node->start >= position) break;
    node->last_used = calls_;
    const int64_t end = std::min(node->end(), position), first = node->start / block;
    for (int64_t b = first; b * block < end; ++b) hit.rows[b] = node->rows[b - first];
  }
  stats_.hit_tokens += position;
  return hit;
}

std::vector<PrefixTree::Planned> PrefixTree::plan_checkpoints(const PrefixHit& hit, int64_t prompt) const {
  std::map<int64_t, CheckpointReason> at;
  if (pool_.plan().state_rows() == 0 || prompt < 1) return {};
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

void PrefixTree::insert(const PrefixScope& scope, std::span<const int32_t> tokens,
                        std::span<const Row> rows) {
  ++calls_;
  const int64_t block = pool_.plan().block_tokens(), total = static_cast<int64_t>(tokens.size());
  check(static_cast<int64_t>(rows.size()) == pool_.plan().blocks(total),
        "PrefixTree::insert: one row per block");
  const Symbols key = symbols(scope, tokens);
  const Place place = find(root(scope, true), key);
  for (Node* node : place.path) node->last_used = calls_;
  if (place.matched == total) return;
  Node* node = place.path.back();
  if (place.matched < node->end()) split(node, place.matched);
  const auto news = key.begin() + place.matched;
  if (node->parent && node->children.empty()) {  // a leaf grows; its last row gives way to the longer one
    const int64_t first = node->start / block;
    node->symbols.insert(node->symbols.end(), news, key.end());
    node->rows.resize(place.matched / block - first);
    node->rows.insert(node->rows.end(), rows.begin() + place.matched / block, rows.end());
    return;
  }
  auto child = std::make_unique<Node>();
  child->parent = node;
  child->start = place.matched;
  child->last_used = calls_;
  child->symbols.assign(news, key.end());
  child->rows.assign(rows.begin() + place.matched / block, rows.end());
  node->children.emplace(*news, std::move(child));
}

bool PrefixTree::insert_checkpoint(const PrefixScope& scope, std::span<const int32_t> tokens,
                                   Checkpoint checkpoint, CheckpointReason reason) {
  const int64_t position = checkpoint.position;
  Node* top = root(scope, false);
  if (!top || position == 0 || checkpoint.rows.empty() || position > static_cast<int64_t>(tokens.size()))
    return false;
  ++calls_;
  const Place place = find(top, symbols(scope, tokens.first(position)));
  if (place.matched < position) return false;
  Node* node = place.path.back();
  if (const auto known = node->checkpoints.find(position); known != node->checkpoints.end()) {
    known->second.last_used = calls_;
    if (reason == CheckpointReason::kPrompt) known->second.reason = reason;
    return true;
  }
  if (reason == CheckpointReason::kTurn) {
    // The turn before, if this is all that went on from it.
    const auto next = node->checkpoints.lower_bound(position);
    for (auto it = next; it != node->checkpoints.begin();) {
      if ((--it)->second.reason != CheckpointReason::kTurn) continue;
      if (it->second.hits <= 1) node->checkpoints.erase(it);
      break;
    }
  }
  Kept kept{.checkpoint = std::move(checkpoint), .reason = reason, .last_used = calls_};
  if (options_.debug) kept.checksum = checksum_of(kept.checkpoint, pool_.plan().row_bytes());
  node->checkpoints.emplace(position, std::move(kept));
  keep_share();
  return node->checkpoints.contains(position);
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

// Where a prompt that passes `position` would go on from if the checkpoint there were gone.
int64_t PrefixTree::checkpoint_before(const Node& node, int64_t position) const {
  for (const Node* n = &node; n; n = n->parent) {
    const auto it = n->checkpoints.lower_bound(position);
    if (it != n->checkpoints.begin()) return std::prev(it)->first;
  }
  return 0;
}

// The checkpoints' share of the pool is theirs alone: what saves least goes, in use or not.
void PrefixTree::keep_share() {
  const double most = options_.checkpoint_share * static_cast<double>(pool_.rows());
  while (static_cast<double>(stats().checkpoints * pool_.plan().state_rows()) > most)
    drop(cheapest_checkpoint());
}

// Tokens that a checkpoint saves per row of the pool, if `rows` come free with it.
double PrefixTree::value(const Node& node, const Kept& kept, int64_t rows) const {
  const int64_t position = kept.checkpoint.position;
  const double saved = static_cast<double>((position - checkpoint_before(node, position)) * (1 + kept.hits));
  return saved / static_cast<double>(rows) / static_cast<double>(1 + calls_ - kept.last_used);
}

PrefixTree::Victim PrefixTree::cheapest_checkpoint() const {
  Victim best;
  for_each([&](Node& node) {
    for (const auto& [position, kept] : node.checkpoints) {
      const double v = value(node, kept, pool_.plan().state_rows());
      if (v < best.value) best = {.node = &node, .position = position, .value = v};
    }
  });
  return best;
}

PrefixTree::Victim PrefixTree::cheapest() const {
  Victim best;
  const int64_t block = pool_.plan().block_tokens();
  for_each([&](Node& node) {
    const bool leaf = node.children.empty() && node.parent;
    if (leaf) {  // no hit can use what stands after its last checkpoint: that goes first, oldest first
      const double v = -1 - static_cast<double>(calls_ - node.last_used);
      if (v < best.value && freed_by_dropping(pool_, rows_after(node, node.used_end(), block)) > 0)
        best = {.node = &node, .value = v};
    }
    for (const auto& [position, kept] : node.checkpoints) {
      int64_t rows = freed_by_dropping(pool_, kept.checkpoint.rows);
      if (rows == 0) continue;
      if (leaf &&
          position == node.used_end()) {  // its last: the rows back to the one before are of no use either
        const int64_t before = std::max(checkpoint_before(node, position), node.start);
        rows += freed_by_dropping(pool_, rows_after(node, before, block));
      }
      const double v = value(node, kept, rows);
      if (v < best.value) best = {.node = &node, .position = position, .value = v};
    }
  });
  return best;
}

// A leaf whose rows nodes above hold as well, but no sequence: dropping it frees none, but then those can go.
PrefixTree::Victim PrefixTree::oldest_unused_leaf() const {
  std::vector<int64_t> own(pool_.rows(), 0);
  check_integrity(own);
  Victim best;
  for_each([&](Node& node) {
    if (!node.children.empty() || !node.parent) return;
    const std::span<const Row> rows = rows_after(node, node.used_end(), pool_.plan().block_tokens());
    const double v = -static_cast<double>(calls_ - node.last_used);
    if (rows.empty() || v >= best.value) return;
    if (std::all_of(rows.begin(), rows.end(),
                    [&](const Row& r) { return own[r.id()] == pool_.references(r.id()); }))
      best = {.node = &node, .value = v};
  });
  return best;
}

// Returns how many rows of the pool came free.
int64_t PrefixTree::drop(const Victim& victim) {
  const int64_t free_before = pool_.free_rows();
  Node* node = victim.node;
  if (victim.position >= 0) {
    node->checkpoints.erase(victim.position);
  } else {
    const int64_t cut = node->used_end();
    if (cut == node->start) {
      Node* parent = node->parent;
      parent->children.erase(node->symbols.front());
    } else {
      const int64_t going = static_cast<int64_t>(rows_after(*node, cut, pool_.plan().block_tokens()).size());
      node->rows.resize(node->rows.size() - going);
      node->symbols.resize(cut - node->start);
    }
  }
  const int64_t freed = pool_.free_rows() - free_before;
  stats_.evicted_rows += freed;
  return freed;
}

bool PrefixTree::make_room(int64_t rows) {
  while (pool_.free_rows() < rows) {
    Victim victim = cheapest();
    if (!victim.node) victim = oldest_unused_leaf();
    if (!victim.node) return false;
    drop(victim);
  }
  return true;
}

int64_t PrefixTree::evictable_rows() const {
  std::vector<int64_t> own(pool_.rows(), 0);
  check_integrity(own);
  int64_t rows = 0;
  for (int64_t row = 0; row < pool_.rows(); ++row)
    rows += own[row] > 0 && own[row] == pool_.references(static_cast<RowId>(row));
  return rows;
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
  for_each([&](Node& node) { s.checkpoints += static_cast<int64_t>(node.checkpoints.size()); });
  return s;
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
    for (const Row& row : node.rows) ++references[row.id()];
    for (const auto& [position, kept] : node.checkpoints) {
      check(position == kept.checkpoint.position && position > node.start && position <= node.end() &&
                position % kChunk == 0,
            "prefix tree: a checkpoint stands on its edge");
      check(static_cast<int64_t>(kept.checkpoint.rows.size()) == pool_.plan().state_rows(),
            "prefix tree: a checkpoint has all its rows");
      for (const Row& row : kept.checkpoint.rows) ++references[row.id()];
    }
  });
}

}  // namespace perigee
