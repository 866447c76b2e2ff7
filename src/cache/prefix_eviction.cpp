// PrefixTree: what goes when rows run out, and what comes back from the store.
#include "base/error.h"
#include "cache/prefix_tree_nodes.h"

namespace perigee {

// What could go next: a checkpoint, or (position −1) rows that no checkpoint in the pool stands behind.
struct PrefixTree::Victim {
  Node* node = nullptr;
  int64_t position = -1;
  int64_t cut = 0;  // the rows after it, when position is −1
  double value = std::numeric_limits<double>::infinity();
};

namespace {

// Up to the last checkpoint in the pool: the node's rows after it serve no hit, if those below do not.
int64_t hit_end(const auto& node) {
  for (auto it = node.checkpoints.rbegin(); it != node.checkpoints.rend(); ++it) {
    if (all_in_pool(it->second.rows)) return it->first;
  }
  return node.start;
}

// A row that the parent keeps too goes with the parent.
bool is_parents(const auto& node, size_t i) {
  return i == 0 && node.parent && !node.parent->rows.empty() && node.parent->rows.back() == node.rows[0];
}

// Nothing below the node is in the pool but what the node has itself. Of all nodes below it, `holds` is set.
bool lowest_in_pool(const auto& node) {
  return std::none_of(node.children.begin(), node.children.end(),
                      [](const auto& child) { return child.second->holds; });
}

bool holds_of_its_own(const auto& node) {
  for (size_t i = 0; i < node.rows.size(); ++i) {
    if (node.rows[i]->row && !is_parents(node, i)) return true;
  }
  return std::any_of(node.checkpoints.begin(), node.checkpoints.end(),
                     [](const auto& at) { return all_in_pool(at.second.rows); });
}

}  // namespace

// Rows of the pool that come free without those from index `from` on.
int64_t PrefixTree::freed_by_dropping(const Node& node, int64_t from) const {
  int64_t freed = 0;
  for (size_t i = from; i < node.rows.size(); ++i) {
    const Row& row = node.rows[i]->row;
    freed += row && pool_.references(row.id()) == 1 && !is_parents(node, i);
  }
  return freed;
}

// Where a prompt that passes `position` would go on from if the checkpoint there were gone.
int64_t PrefixTree::checkpoint_before(const Node& node, int64_t position) const {
  for (const Node* n = &node; n; n = n->parent) {
    for (auto it = n->checkpoints.lower_bound(position); it != n->checkpoints.begin();) {
      if (all_in_pool((--it)->second.rows)) return it->first;
    }
  }
  return 0;
}

// Tokens that a checkpoint saves per row of the pool, if `rows` come free with it.
double PrefixTree::value(const Node& node, const Kept& kept, int64_t rows) const {
  const double saved =
      static_cast<double>((kept.position - checkpoint_before(node, kept.position)) * (1 + kept.hits));
  return saved / static_cast<double>(rows) / static_cast<double>(1 + calls_ - kept.last_used);
}

// The checkpoints' share of the pool is theirs alone: what saves least goes, in use or not.
void PrefixTree::keep_share() {
  const double most = options_.checkpoint_share * static_cast<double>(pool_.rows());
  while (static_cast<double>(stats().checkpoints * pool_.plan().state_rows()) > most) {
    Victim best;
    for_each([&](Node& node) {
      for (const auto& [position, kept] : node.checkpoints) {
        if (!all_in_pool(kept.rows)) continue;
        const double v = value(node, kept, std::max<int64_t>(1, pool_.plan().state_rows()));
        if (v < best.value) best = {.node = &node, .position = position, .value = v};
      }
    });
    if (!best.node) return;
    drop(best);
  }
}

PrefixTree::Victim PrefixTree::cheapest() const {
  Victim best;
  const int64_t block = pool_.plan().block_tokens();
  std::vector<Node*> nodes;  // parents before their children
  for_each([&](Node& node) { nodes.push_back(&node); });
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node)
    (*node)->holds = !lowest_in_pool(**node) || holds_of_its_own(**node);
  for (Node* at : nodes) {
    Node& node = *at;
    if (!node.parent) continue;
    const int64_t end = hit_end(node);
    const bool lowest = lowest_in_pool(node);
    if (lowest) {  // no hit can use what stands after its last checkpoint: that goes first, oldest first
      const double v = -1 - static_cast<double>(calls_ - node.last_used);
      if (v < best.value && freed_by_dropping(node, node.rows_before(end, block)) > 0)
        best = {.node = &node, .cut = end, .value = v};
    }
    for (const auto& [position, kept] : node.checkpoints) {
      if (!all_in_pool(kept.rows)) continue;
      int64_t rows = std::count_if(kept.rows.begin(), kept.rows.end(),
                                   [&](const auto& r) { return pool_.references(r->row.id()) == 1; });
      if (rows == 0) continue;
      if (lowest && position == end) {  // its last: the rows back to the one before are of no use either
        const int64_t before = std::max(checkpoint_before(node, position), node.start);
        rows += freed_by_dropping(node, node.rows_before(before, block));
      }
      const double v = value(node, kept, rows);
      if (v < best.value) best = {.node = &node, .position = position, .value = v};
    }
  }
  return best;
}

// What has a copy in the store leaves the pool alone; the rest leaves the tree.
void PrefixTree::drop(const Victim& victim) {
  const int64_t free_before = pool_.free_rows(), block = pool_.plan().block_tokens();
  Node* node = victim.node;
  const auto copied = [](const auto& r) { return r->in_store(); };
  if (victim.position >= 0) {
    Kept& kept = node->checkpoints.at(victim.position);
    if (!kept.rows.empty() && std::all_of(kept.rows.begin(), kept.rows.end(), copied)) {
      for (const auto& r : kept.rows) r->hold(Row());
    } else {
      node->checkpoints.erase(victim.position);
    }
  } else {
    size_t i = node->rows_before(victim.cut, block);
    for (; i < node->rows.size() && (is_parents(*node, i) || copied(node->rows[i])); ++i) {
      if (!is_parents(*node, i)) node->rows[i]->hold(Row());
    }
    if (i < node->rows.size()) {
      const int64_t cut = std::max(victim.cut, (node->start / block + static_cast<int64_t>(i)) * block);
      cut_off(node, std::max(cut, node->start));
    }
  }
  stats_.evicted_rows += pool_.free_rows() - free_before;
}

// Forgets everything from position `cut` of the node on.
void PrefixTree::cut_off(Node* node, int64_t cut) {
  if (cut == node->start) {
    const int64_t symbol = node->symbols.front();
    node->parent->children.erase(symbol);
    return;
  }
  node->children.clear();
  node->checkpoints.erase(node->checkpoints.upper_bound(cut), node->checkpoints.end());
  node->rows.resize(node->rows_before(cut, pool_.plan().block_tokens()));
  node->symbols.resize(cut - node->start);
}

bool PrefixTree::make_room(int64_t rows) {
  if (rows > pool_.free_rows() && store_) poll();  // copies that are done free their rows
  while (pool_.free_rows() < rows) {
    const Victim victim = cheapest();
    if (!victim.node) {
      if (!store_ || !store_->busy()) return false;
      wait();  // the rows that are being copied out are all there is left
      continue;
    }
    drop(victim);
  }
  return true;
}

void PrefixTree::copy_out(KeptRow& row) {
  if (!store_ || row.copy || !row.row) return;
  row.store = store_;
  row.copy = store_->put(row.row);
  if (!row.copy && make_store_room()) row.copy = store_->put(row.row);
}

// The store forgets the oldest of what the pool has lost, or else the oldest copies of what it still has.
bool PrefixTree::make_store_room() {
  const int64_t free_before = store_->free_rows();
  Node *lost = nullptr, *copied = nullptr;
  for_each([&](Node& node) {
    if (!node.parent) return;
    bool in_pool = false, copies = false;
    const auto look = [&](const KeptRows& rows) {
      for (const auto& r : rows) {
        in_pool |= static_cast<bool>(r->row);
        copies |= r->copy != 0;
      }
    };
    look(node.rows);
    for (const auto& [position, kept] : node.checkpoints) look(kept.rows);
    if (!copies) return;
    if (!in_pool && node.children.empty() && (!lost || node.last_used < lost->last_used)) lost = &node;
    if (in_pool && (!copied || node.last_used < copied->last_used)) copied = &node;
  });
  if (lost) {
    lost->parent->children.erase(lost->symbols.front());
  } else if (copied) {
    const auto forget = [](const KeptRows& rows) {
      for (const auto& r : rows) {
        if (r->row) r->forget_copy();
      }
    };
    forget(copied->rows);
    for (const auto& [position, kept] : copied->checkpoints) forget(kept.rows);
  }
  return store_->free_rows() > free_before;
}

int64_t PrefixTree::fetch(const PrefixScope& scope, std::span<const int32_t> tokens) {
  Node* top = root(scope, false);
  if (!top || !store_ || tokens.empty()) return 0;
  const Place place = find(top, symbols(scope, tokens));
  auto [kept, rows] =
      longest(place, std::min<int64_t>(place.matched, static_cast<int64_t>(tokens.size()) - 1), false);
  if (!kept) return 0;
  kept->last_used = ++calls_;
  for (Node* node : place.path) {
    if (node->start < kept->position) node->last_used = calls_;
  }
  rows.insert(rows.end(), kept->rows.begin(), kept->rows.end());
  std::vector<Row> held;  // what is there must not make room for the rest
  KeptRows missing;
  for (const auto& r : rows) {
    if (r->row) {
      held.push_back(r->row);
    } else if (std::find(missing.begin(), missing.end(), r) == missing.end()) {
      missing.push_back(r);
    }
  }
  if (missing.empty() || !make_room(static_cast<int64_t>(missing.size()))) return 0;
  const int64_t ticket = next_ticket_++;
  Fetch& fetch = fetches_[ticket];
  for (const auto& r : missing) {
    const Row row = pool_.take_row();
    store_->get(r->copy, row);
    awaited_.emplace(r->copy, ticket);
    fetch.rows.emplace_back(r, row);
    ++fetch.coming;
  }
  return ticket;
}

void PrefixTree::poll() {
  if (!store_) return;
  for (const RowStore::Arrival& arrival : store_->poll()) {
    const auto first = awaited_.lower_bound(arrival.key);
    check(first != awaited_.end() && first->first == arrival.key,
          "prefix tree: a row that came was asked for");
    const int64_t ticket = first->second;
    awaited_.erase(first);
    Fetch& fetch = fetches_.at(ticket);
    fetch.whole = fetch.whole && arrival.ok;
    for (const auto& [kept, row] : fetch.rows) {
      if (!arrival.ok && kept->copy == arrival.key) kept->copy = 0;
    }
    if (--fetch.coming > 0) continue;
    if (fetch.whole) {
      for (const auto& [kept, row] : fetch.rows) {
        if (!kept->row) kept->hold(row);
      }
    }
    fetches_.erase(ticket);
    keep_share();
  }
}

void PrefixTree::wait() {
  if (!store_) return;
  store_->wait();
  poll();
}

}  // namespace perigee
