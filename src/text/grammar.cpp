#include "text/grammar.h"

#include <algorithm>

#include "base/error.h"

namespace perigee {

namespace {

constexpr int kDeepest = 4096;             // rules entered without a byte between them
constexpr size_t kMostPlaces = 4096;       // of one state
constexpr size_t kMostLooks = 1 << 16;     // at places, to find those of one state
constexpr size_t kMostMemory = 256 << 20;  // bytes of one machine's places and states
constexpr size_t kMostWork = 1 << 21;      // looks at places in one call: some 50 ms, which others wait
constexpr size_t kMostWorkInAll = 1 << 28;
constexpr size_t kIndexed = 32;           // bytes that an index adds to what it finds
constexpr size_t kMostAllowed = 8 << 20;  // ids kept of allowed tokens; older ones are made again

uint64_t mix(uint64_t hash, uint64_t x) {
  hash = (hash ^ x) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

int32_t Grammar::new_rule() {
  rules_.emplace_back();
  return static_cast<int32_t>(rules_.size()) - 1;
}

void Grammar::add(int32_t rule, Sequence alternative) {
  symbols_ += alternative.size() + 1;
  if (symbols_ > kMostSymbols)
    fail(ErrorCode::kBadRequest,
         "the grammar has more than {} symbols; simplify the schema, or lower its bounds", kMostSymbols);
  rules_[static_cast<size_t>(rule)].push_back(std::move(alternative));
}

int32_t Grammar::rule_of(std::vector<Sequence> alternatives) {
  const int32_t id = new_rule();
  for (Sequence& one : alternatives) add(id, std::move(one));
  return id;
}

Grammar::Sequence Grammar::literal(std::string_view text) {
  Sequence out;
  for (const char c : text) {
    ByteSet one;
    one.set(static_cast<uint8_t>(c));
    out.push_back(bytes(one));
  }
  return out;
}

Grammar::Symbol Grammar::bytes(const ByteSet& set) {
  const auto [found, made] = set_index_.emplace(set, static_cast<int32_t>(sets_.size()));
  if (made) sets_.push_back(set);
  return {Symbol::kBytes, found->second};
}

Grammar::Symbol Grammar::repeat(const Sequence& item, int least, int most) {
  // The tail first: every rule refers to the one made before it.
  Sequence rest;
  if (most < 0) {
    const int32_t loop = new_rule();
    Sequence again = item;
    again.push_back(rule(loop));
    add(loop, std::move(again));
    add(loop, {});
    rest = {rule(loop)};
  } else {
    for (int i = least; i < most; ++i) {
      Sequence more = item;
      more.insert(more.end(), rest.begin(), rest.end());
      rest = {rule(rule_of({std::move(more), {}}))};
    }
  }
  const int32_t all = new_rule();
  Sequence whole;
  for (int i = 0; i < least; ++i) {
    if (whole.size() > kMostSymbols) fail(ErrorCode::kBadRequest, "a repetition of {} is too long", least);
    whole.insert(whole.end(), item.begin(), item.end());
  }
  whole.insert(whole.end(), rest.begin(), rest.end());
  add(all, std::move(whole));
  return rule(all);
}

void Grammar::drop_endless() {
  using Place = std::pair<size_t, size_t>;  // rule, alternative
  std::vector<std::vector<Place>> uses(rules_.size());
  std::vector<std::vector<size_t>> open(rules_.size());  // symbols of an alternative not known to end
  std::vector<bool> ends(rules_.size());
  std::vector<size_t> found;
  const auto settle = [&](size_t rule) {
    if (!ends[rule]) found.push_back(rule);
    ends[rule] = true;
  };
  for (size_t r = 0; r < rules_.size(); ++r)
    for (size_t a = 0; a < rules_[r].size(); ++a) {
      size_t& count = open[r].emplace_back(0);
      for (const Symbol& symbol : rules_[r][a]) {
        const auto value = static_cast<size_t>(symbol.value);
        if (symbol.kind == Symbol::kRule) uses[value].emplace_back(r, a);
        count += symbol.kind == Symbol::kRule || (symbol.kind == Symbol::kBytes && sets_[value].none());
      }
      if (count == 0) settle(r);
    }
  while (!found.empty()) {
    const size_t rule = found.back();
    found.pop_back();
    for (const auto& [r, a] : uses[rule])
      if (--open[r][a] == 0) settle(r);
  }
  for (size_t r = 0; r < rules_.size(); ++r) {
    size_t a = 0;
    std::erase_if(rules_[r], [&](const Sequence&) { return open[r][a++] > 0; });
  }
}

Grammar::Sequence join(const std::vector<Grammar::Sequence>& parts) {
  Grammar::Sequence out;
  for (const Grammar::Sequence& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

TokenTree::TokenTree(const Vocabulary& vocabulary) : vocabulary_(vocabulary), nodes_(1) {
  for (int32_t id = 0; id < vocabulary_.base_size(); ++id) {
    const std::string_view bytes = vocabulary_.bytes(id);
    if (bytes.empty()) continue;
    int32_t at = 0;
    for (const char c : bytes) {
      auto& children = nodes_[static_cast<size_t>(at)].children;
      const auto found = std::find_if(children.begin(), children.end(), [&](const auto& child) {
        return child.first == static_cast<uint8_t>(c);
      });
      if (found != children.end()) {
        at = found->second;
      } else {
        const int32_t made = static_cast<int32_t>(nodes_.size());
        children.emplace_back(static_cast<uint8_t>(c), made);
        nodes_.emplace_back();
        at = made;
      }
    }
    nodes_[static_cast<size_t>(at)].tokens.push_back(id);
  }
}

struct GrammarMachine::State {
  std::vector<const Place*> terminals;  // each at a byte set or a control token
  ByteSet bytes;                        // that any of them takes
  bool whole = false;
  std::vector<std::pair<uint8_t, State*>> next;  // known so far; null: nowhere
  std::vector<int32_t> allowed;
  bool allowed_known = false;
};

GrammarMachine::GrammarMachine(Grammar grammar, std::shared_ptr<const TokenTree> tokens,
                               std::vector<int32_t> stop_ids)
    : grammar_(std::move(grammar)), tokens_(std::move(tokens)), stop_ids_(std::move(stop_ids)) {
  grammar_.drop_endless();
  if (grammar_.rules()[0].empty())
    fail(ErrorCode::kBadRequest,
         "the grammar takes no text: every way through it leads back to itself, or to a set of no character");
  Closure closure{.number = ++closures_};
  for (size_t i = 0; i < grammar_.rules()[0].size(); ++i)
    expand(place(0, static_cast<int32_t>(i), 0, nullptr), closure, 0);
  start_ = intern(std::move(closure));
}

GrammarMachine::~GrammarMachine() = default;

void GrammarMachine::remember(size_t bytes) {
  memory_ += bytes;
  if (memory_ > kMostMemory)
    fail(ErrorCode::kBadRequest, "the answer needs more than {} MiB of states of its grammar; simplify it",
         kMostMemory >> 20);
}

void GrammarMachine::spend(size_t looks) {
  spent_ += looks;
  spent_in_all_ += looks;
  if (spent_ > kMostWork || spent_in_all_ > kMostWorkInAll)
    fail(ErrorCode::kBadRequest, "the grammar takes too long to follow; simplify it, or lower its bounds");
}

// The one place with these parts: equal places are the same pointer, so that equal states are found.
const GrammarMachine::Place* GrammarMachine::place(int32_t rule, int32_t alternative, int32_t position,
                                                   const Place* next) {
  uint64_t hash = mix(mix(mix(static_cast<uint64_t>(rule), static_cast<uint64_t>(alternative)),
                          static_cast<uint64_t>(position)),
                      next ? next->hash : 1);
  const auto [first, last] = place_index_.equal_range(hash);
  for (auto known = first; known != last; ++known) {
    const Place& p = *known->second;
    if (p.rule == rule && p.alternative == alternative && p.position == position && p.next == next) return &p;
  }
  remember(sizeof(Place) + kIndexed);
  places_.push_back({rule, alternative, position, next, hash, 0});
  place_index_.emplace(hash, &places_.back());
  return &places_.back();
}

// Adds the terminals that may come at `at`. A place that was looked at is not looked at again, or the ways
// through rules that may be empty would multiply.
void GrammarMachine::expand(const Place* at, Closure& closure, int depth) {
  if (depth > kDeepest)
    fail(ErrorCode::kBadRequest,
         "the grammar enters more than {} rules without reading anything; write it without left recursion, "
         "and "
         "with fewer rules in a row that may be empty",
         kDeepest);
  // A rule that is done goes on behind it; the end of a sequence that is a rule's last needs no place of its
  // own.
  while (at && static_cast<size_t>(at->position) == sequence(at).size()) at = at->next;
  if (!at) {
    closure.whole = true;
    return;
  }
  if (at->seen_by == closure.number) return;
  at->seen_by = closure.number;
  if (++closure.looks > kMostLooks || closure.terminals.size() > kMostPlaces)
    fail(ErrorCode::kBadRequest, "the grammar has more than {} ways to go on at one place; simplify it",
         kMostPlaces);
  const Grammar::Symbol symbol = sequence(at)[static_cast<size_t>(at->position)];
  if (symbol.kind != Grammar::Symbol::kRule) {
    closure.terminals.push_back(at);
    return;
  }
  const bool last = static_cast<size_t>(at->position) + 1 == sequence(at).size();
  const Place* behind = last ? at->next : place(at->rule, at->alternative, at->position + 1, at->next);
  const auto& alternatives = grammar_.rules()[static_cast<size_t>(symbol.value)];
  for (size_t i = 0; i < alternatives.size(); ++i)
    expand(place(symbol.value, static_cast<int32_t>(i), 0, behind), closure, depth + 1);
}

GrammarMachine::State* GrammarMachine::intern(Closure closure) {
  std::vector<const Place*> terminals = std::move(closure.terminals);
  const bool whole = closure.whole;
  std::sort(terminals.begin(), terminals.end());
  uint64_t hash = whole;
  for (const Place* p : terminals) hash = mix(hash, p->hash);
  const auto [first, last] = state_index_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (known->second->terminals == terminals && known->second->whole == whole) return known->second;
  remember(sizeof(State) + kIndexed + terminals.size() * sizeof(Place*));
  states_.push_back(std::make_unique<State>());
  State* made = states_.back().get();
  for (const Place* at : terminals) {
    const Grammar::Symbol symbol = sequence(at)[static_cast<size_t>(at->position)];
    if (symbol.kind == Grammar::Symbol::kBytes) made->bytes |= grammar_.set(symbol.value);
  }
  made->terminals = std::move(terminals);
  made->whole = whole;
  state_index_.emplace(hash, made);
  return made;
}

GrammarMachine::State* GrammarMachine::step(State* state, uint8_t byte) {
  if (!state->bytes.test(byte)) return nullptr;
  for (const auto& [known, next] : state->next)
    if (known == byte) return next;
  Closure closure{.number = ++closures_};
  spend(state->terminals.size());
  for (const Place* at : state->terminals) {
    const Grammar::Symbol symbol = sequence(at)[static_cast<size_t>(at->position)];
    if (symbol.kind == Grammar::Symbol::kBytes && grammar_.set(symbol.value).test(byte))
      expand(place(at->rule, at->alternative, at->position + 1, at->next), closure, 0);
  }
  spend(closure.looks);
  State* next = closure.empty() ? nullptr : intern(std::move(closure));
  remember(sizeof(state->next.front()));
  state->next.emplace_back(byte, next);
  return next;
}

const GrammarMachine::State* GrammarMachine::after(const State* from, int32_t token) {
  State* state = const_cast<State*>(from);  // its memory of what comes next grows; what it is does not change
  spent_ = 0;
  const Vocabulary& vocabulary = tokens_->vocabulary();
  if (!vocabulary.is_control(token)) {
    for (const char c : vocabulary.bytes(token)) {
      state = step(state, static_cast<uint8_t>(c));
      if (!state) return nullptr;
    }
    return state;
  }
  Closure closure{.number = ++closures_};
  for (const Place* at : state->terminals) {
    const Grammar::Symbol symbol = sequence(at)[static_cast<size_t>(at->position)];
    if (symbol.kind == Grammar::Symbol::kControl && symbol.value == token)
      expand(place(at->rule, at->alternative, at->position + 1, at->next), closure, 0);
  }
  if (!closure.empty()) return intern(std::move(closure));
  const bool ends = state->whole && std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
  return ends ? intern({}) : nullptr;
}

void GrammarMachine::collect(State* state, int32_t node, std::vector<int32_t>& out) {
  const TokenTree::Node& at = tokens_->node(node);
  out.insert(out.end(), at.tokens.begin(), at.tokens.end());
  for (const auto& [byte, child] : at.children)
    if (State* next = step(state, byte)) collect(next, child, out);
}

const std::vector<int32_t>& GrammarMachine::allowed(const State* of) {
  State* state = const_cast<State*>(of);
  if (state->allowed_known) return state->allowed;
  spent_ = 0;
  std::vector<int32_t> out;
  collect(state, 0, out);
  for (const Place* at : state->terminals) {
    const Grammar::Symbol symbol = sequence(at)[static_cast<size_t>(at->position)];
    if (symbol.kind == Grammar::Symbol::kControl) out.push_back(symbol.value);
  }
  if (state->whole) out.insert(out.end(), stop_ids_.begin(), stop_ids_.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  // Counted strings have a state for every length: their lists are too long to keep them all.
  if (allowed_kept_ += out.size(); allowed_kept_ > kMostAllowed) {
    for (const auto& one : states_) {
      one->allowed = {};
      one->allowed_known = false;
    }
    allowed_kept_ = out.size();
  }
  state->allowed = std::move(out);
  state->allowed_known = true;
  return state->allowed;
}

bool GrammarMachine::whole(const State* state) const { return state->whole; }

}  // namespace perigee
