#include "text/grammar_record.h"

#include <boost/json.hpp>

#include "base/error.h"

namespace perigee {

namespace json = boost::json;

namespace {

[[noreturn]] void damaged(const char* what) {
  fail(ErrorCode::kBadFile, "a recorded grammar: {}; the record is damaged", what);
}

// The set's bytes as runs: first, last, first, last, …
json::array runs_of(const ByteSet& set) {
  json::array runs;
  for (int first = 0; first < 256; ++first) {
    if (!set[first]) continue;
    int last = first;
    while (last < 255 && set[last + 1]) ++last;
    runs.push_back(first);
    runs.push_back(last);
    first = last;
  }
  return runs;
}

const json::array& array_of(const json::value* value, const char* what) {
  if (!value || !value->is_array()) damaged(what);
  return value->get_array();
}

int32_t number_of(const json::value& value, int64_t end, const char* what) {
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= end) damaged(what);
  return static_cast<int32_t>(value.get_int64());
}

}  // namespace

json::object grammar_record(const Grammar& grammar) {
  json::array rules, sets;
  for (const auto& alternatives : grammar.rules()) {
    json::array rule;
    for (const Grammar::Sequence& one : alternatives) {
      json::array symbols;
      for (const Grammar::Symbol& s : one) {
        symbols.push_back(static_cast<int>(s.kind));
        symbols.push_back(s.value);
      }
      rule.push_back(std::move(symbols));
    }
    rules.push_back(std::move(rule));
  }
  for (size_t i = 0; i < grammar.sets(); ++i) sets.push_back(runs_of(grammar.set(static_cast<int32_t>(i))));
  return {{"rules", std::move(rules)}, {"sets", std::move(sets)}};
}

Grammar grammar_from_record(const json::object& record) {
  const json::array& rules = array_of(record.if_contains("rules"), "it has no rules");
  const json::array& sets = array_of(record.if_contains("sets"), "it has no byte sets");
  if (rules.empty()) damaged("it has no rules");
  Grammar grammar;
  for (const json::value& value : sets) {
    const json::array& runs = array_of(&value, "a byte set is no list");
    ByteSet set;
    if (runs.size() % 2) damaged("a byte set has a run without an end");
    for (size_t i = 0; i < runs.size(); i += 2) {
      const int32_t last = number_of(runs[i + 1], 256, "a byte is not in [0, 255]");
      for (int32_t b = number_of(runs[i], 256, "a byte is not in [0, 255]"); b <= last; ++b) set.set(b);
    }
    grammar.bytes(set);
  }
  if (grammar.sets() != sets.size()) damaged("a byte set stands twice");
  for (size_t i = 0; i < rules.size(); ++i) grammar.new_rule();
  for (size_t i = 0; i < rules.size(); ++i) {
    for (const json::value& value : array_of(&rules[i], "a rule is no list")) {
      const json::array& symbols = array_of(&value, "an alternative is no list");
      if (symbols.size() % 2) damaged("a symbol has no value");
      Grammar::Sequence one;
      for (size_t s = 0; s < symbols.size(); s += 2) {
        const int32_t kind = number_of(symbols[s], 3, "a symbol is of an unknown kind");
        const int64_t end = kind == Grammar::Symbol::kBytes  ? static_cast<int64_t>(sets.size())
                            : kind == Grammar::Symbol::kRule ? static_cast<int64_t>(rules.size())
                                                             : int64_t{1} << 31;
        one.push_back({static_cast<Grammar::Symbol::Kind>(kind),
                       number_of(symbols[s + 1], end, "a symbol names what is not there")});
      }
      grammar.add(static_cast<int32_t>(i), std::move(one));
    }
  }
  return grammar;
}

}  // namespace perigee
