// A context-free grammar over bytes and control tokens, and the machine that follows it token by token.
// Structured output is an answer of which every token is one that the machine allows.
//
// The machine is a lazy automaton: a state is the set of what may come next, made when it is first reached
// and kept, with the tokens it allows. So a state that recurs (inside a string, say) costs a lookup. States
// never change: going back is keeping the old one.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/vocabulary.h"

namespace perigee {

using ByteSet = std::bitset<256>;

// Rules are numbered from 0; rule 0 is what a whole text must be.
class Grammar {
 public:
  struct Symbol {
    enum Kind : uint8_t { kBytes, kRule, kControl };
    Kind kind;
    int32_t value;  // index of a byte set, rule, or control id

    bool operator==(const Symbol&) const = default;
  };
  using Sequence = std::vector<Symbol>;

  // A rule without alternatives, to be filled: rules may refer to one another.
  int32_t new_rule();
  void add(int32_t rule, Sequence alternative);

  // A rule for …
  int32_t rule_of(std::vector<Sequence> alternatives);
  Sequence literal(std::string_view text);
  Symbol bytes(const ByteSet& set);
  static Symbol rule(int32_t id) { return {Symbol::kRule, id}; }
  static Symbol control(int32_t id) { return {Symbol::kControl, id}; }
  // … `item` from `least` to `most` times; most < 0: without end.
  Symbol repeat(const Sequence& item, int least, int most);
  Symbol choice(std::vector<Sequence> alternatives) { return rule(rule_of(std::move(alternatives))); }
  Symbol optional(const Sequence& item) { return choice({item, {}}); }

  // Takes out the alternatives that no text has, since they lead to themselves alone or to a set of no byte:
  // what is left has no dead ends.
  void drop_endless();

  const std::vector<std::vector<Sequence>>& rules() const { return rules_; }
  const ByteSet& set(int32_t index) const { return sets_[static_cast<size_t>(index)]; }
  size_t sets() const { return sets_.size(); }
  // Symbols in all rules. Throws Error{kBadRequest} from kMostSymbols on, so that no schema can grow without
  // bound.
  size_t size() const { return symbols_; }
  static constexpr size_t kMostSymbols = 1 << 17;

 private:
  std::vector<std::vector<Sequence>> rules_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, int32_t> set_index_;
  size_t symbols_ = 0;
};

// One after another.
Grammar::Sequence join(const std::vector<Grammar::Sequence>& parts);

// The vocabulary's pieces as a tree, for machines of any grammar.
class TokenTree {
 public:
  explicit TokenTree(const Vocabulary& vocabulary);

  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;  // by byte
    std::vector<int32_t> tokens;                        // that end here
  };
  const Node& node(int32_t index) const { return nodes_[static_cast<size_t>(index)]; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::vector<Node> nodes_;
};

class GrammarMachine {
 public:
  struct State;

  // `stop_ids` end a text that is whole. Throws Error{kBadRequest} for a grammar that recurs on its left, or
  // takes no text.
  GrammarMachine(Grammar grammar, std::shared_ptr<const TokenTree> tokens, std::vector<int32_t> stop_ids);
  ~GrammarMachine();

  const Grammar& grammar() const { return grammar_; }
  const State* start() const { return start_; }
  // Null when the token may not come here. Throws Error{kBadRequest} when the states outgrow their memory, or
  // finding them takes too long; the same for the same calls on any machine.
  const State* after(const State* state, int32_t token);
  // The tokens that may come, ascending; valid until the next call. Empty after the end.
  const std::vector<int32_t>& allowed(const State* state);
  bool whole(const State* state) const;  // the text may end here

 private:
  // A place in a rule and the places to go on from when the rule is done.
  struct Place {
    int32_t rule, alternative, position;
    const Place* next;  // null: the end of the text
    uint64_t hash;
    mutable uint64_t seen_by;  // the last closure that looked here
  };

  // What may come at some places, while it is being found.
  struct Closure {
    uint64_t number = 0;
    std::vector<const Place*> terminals = {};
    bool whole = false;
    size_t looks = 0;

    bool empty() const { return terminals.empty() && !whole; }
  };

  void remember(size_t bytes);  // counts what the machine keeps
  void spend(size_t looks);     // counts what a call does, and all of them
  const Place* place(int32_t rule, int32_t alternative, int32_t position, const Place* next);
  void expand(const Place* at, Closure& closure, int depth);
  State* intern(Closure closure);
  State* step(State* state, uint8_t byte);
  void collect(State* state, int32_t node, std::vector<int32_t>& out);
  const Grammar::Sequence& sequence(const Place* at) const {
    return grammar_.rules()[static_cast<size_t>(at->rule)][static_cast<size_t>(at->alternative)];
  }

  Grammar grammar_;
  std::shared_ptr<const TokenTree> tokens_;
  std::vector<int32_t> stop_ids_;
  std::deque<Place> places_;
  std::unordered_multimap<uint64_t, const Place*> place_index_;
  std::vector<std::unique_ptr<State>> states_;
  std::unordered_multimap<uint64_t, State*> state_index_;
  uint64_t closures_ = 0;
  size_t memory_ = 0, allowed_kept_ = 0;
  size_t spent_ = 0, spent_in_all_ = 0;
  State* start_ = nullptr;
};

}  // namespace perigee
