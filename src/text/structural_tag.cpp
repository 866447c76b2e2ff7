// Structural tags, as vLLM and xgrammar take them: text that is free up to a trigger, and then one of some
// tags, each with a form between its beginning and its end. Both notations are read: {"structures",
// "triggers"}, and {"format"} with its nested kinds.
#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <queue>

#include "base/error.h"
#include "text/grammar_sources.h"

namespace perigee {

namespace json = boost::json;

namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;

constexpr int kDeepestFormat = 32;
constexpr size_t kMostWords = 256, kLongestWord = 256;

// A word that ends free text, and what follows it there; nothing: the word may not come.
struct Watched {
  std::string word;
  std::optional<Sequence> then;
};

// Free text up to the first of the words, as the automaton of Aho and Corasick: one rule a state.
class FreeText {
 public:
  // `rule` is filled with the text; `may_end`: it may also end without a word.
  FreeText(Grammar& grammar, int32_t rule, std::vector<Watched> watched, bool may_end)
      : g_(grammar), watched_(std::move(watched)), rules_{rule} {
    states_.emplace_back();
    for (size_t i = 0; i < watched_.size(); ++i) insert(i);
    link();
    for (size_t s = 1; s < states_.size(); ++s) rules_.push_back(g_.new_rule());
    for (size_t s = 0; s < states_.size(); ++s) fill(s, may_end);
  }

 private:
  struct State {
    std::map<uint8_t, size_t> next;
    std::vector<size_t> ends;  // words
    size_t back = 0;           // the longest other state that this one ends with
  };

  void insert(size_t word) {
    size_t at = 0;
    for (const char c : watched_[word].word) {
      const auto [found, made] = states_[at].next.emplace(static_cast<uint8_t>(c), states_.size());
      at = found->second;
      if (made) states_.emplace_back();
    }
    states_[at].ends.push_back(word);
  }
  void link() {
    std::queue<size_t> queue;
    for (const auto& [byte, child] : states_[0].next) queue.push(child);
    for (; !queue.empty(); queue.pop()) {
      const size_t at = queue.front();
      for (const auto& [byte, child] : states_[at].next) {
        states_[child].back = after(states_[at].back, byte);
        queue.push(child);
      }
      const std::vector<size_t>& more = states_[states_[at].back].ends;
      states_[at].ends.insert(states_[at].ends.end(), more.begin(), more.end());
    }
  }
  size_t after(size_t state, uint8_t byte) const {
    for (;; state = states_[state].back) {
      if (const auto found = states_[state].next.find(byte); found != states_[state].next.end())
        return found->second;
      if (state == 0) return 0;
    }
  }
  void fill(size_t state, bool may_end) {
    std::map<size_t, ByteSet> by_target;
    for (int byte = 0; byte < 256; ++byte)
      by_target[after(state, static_cast<uint8_t>(byte))].set(static_cast<size_t>(byte));
    for (const auto& [target, set] : by_target) {
      if (states_[target].ends.empty()) g_.add(rules_[state], {g_.bytes(set), Grammar::rule(rules_[target])});
      for (const size_t word : states_[target].ends)
        if (watched_[word].then) g_.add(rules_[state], join({{g_.bytes(set)}, *watched_[word].then}));
    }
    if (may_end) g_.add(rules_[state], {});
  }

  Grammar& g_;
  std::vector<Watched> watched_;
  std::vector<State> states_;
  std::vector<int32_t> rules_;
};

class TagReader {
 public:
  TagReader(Grammar& grammar, const Vocabulary& vocabulary) : g_(grammar), vocabulary_(vocabulary) {}

  Symbol read(const json::value& tag) {
    const std::string where = "structural_tag";
    const json::object& o = object(tag, where);
    if (const json::value* format = o.if_contains("format"))
      return this->format(*format, where + ".format", 0);
    if (!o.contains("structures")) reject(where, "has neither format nor structures; give one of them");
    const Triggers all{.triggers = words(o, "triggers", where),
                       .tags = tags(o, "structures", where, 0),
                       .excludes = {},
                       .at_least_one = false,
                       .stop_after_first = false};
    return triggered(all, where);
  }

 private:
  struct Tag {
    std::string begin;
    Sequence rest;  // after the beginning
  };
  struct Triggers {
    std::vector<std::string> triggers;
    std::vector<Tag> tags;
    std::vector<std::string> excludes;
    bool at_least_one, stop_after_first;
  };

  [[noreturn]] static void reject(const std::string& where, std::string_view why) {
    fail(ErrorCode::kBadRequest, "{} {}", where, why);
  }
  static const json::object& object(const json::value& value, const std::string& where) {
    if (!value.is_object()) reject(where, "is not an object");
    return value.get_object();
  }
  static const json::array& list(const json::object& o, const char* key, const std::string& where) {
    const json::value* value = o.if_contains(key);
    if (!value || !value->is_array() || value->get_array().empty() || value->get_array().size() > kMostWords)
      reject(where, fmt::format("has no {}; expected a list of 1 to {}", key, kMostWords));
    return value->get_array();
  }
  static bool flag(const json::object& o, const char* key, const std::string& where) {
    const json::value* value = o.if_contains(key);
    if (!value) return false;
    if (!value->is_bool()) reject(where, fmt::format("has {} that is neither true nor false", key));
    return value->get_bool();
  }
  // Text of the answer: words of control tokens would be spelled out in it, and mean nothing.
  std::string text(const json::value& value, const std::string& where) const {
    if (!value.is_string() || value.get_string().size() > kLongestWord)
      reject(where, fmt::format("is not a text of at most {} bytes", kLongestWord));
    std::string out(value.get_string());
    for (int32_t id = vocabulary_.base_size(); id < vocabulary_.size(); ++id)
      if (out.find(vocabulary_.bytes(id)) != std::string::npos)
        reject(where,
               fmt::format("holds the control token {}; the model's own calls are enforced by tools, with "
                           "tool_choice or strict",
                           vocabulary_.bytes(id)));
    return out;
  }
  std::string text(const json::object& o, const char* key, const std::string& where) const {
    const json::value* value = o.if_contains(key);
    if (!value) reject(where, fmt::format("lacks {}", key));
    return text(*value, fmt::format("{}.{}", where, key));
  }
  std::vector<std::string> words(const json::object& o, const char* key, const std::string& where) const {
    std::vector<std::string> out;
    for (const json::value& one : list(o, key, where)) {
      out.push_back(text(one, fmt::format("{}.{}", where, key)));
      if (out.back().empty()) reject(where, fmt::format("has an empty text in {}", key));
    }
    return out;
  }
  std::vector<std::string> excluded(const json::object& o, const std::string& where) const {
    const json::value* value = o.if_contains("excludes");
    const bool none = !value || value->is_null() || (value->is_array() && value->get_array().empty());
    return none ? std::vector<std::string>() : words(o, "excludes", where);
  }

  Symbol format(const json::value& value, const std::string& where, int depth) {
    if (depth > kDeepestFormat) reject(where, "is nested too deep");
    const json::object& o = object(value, where);
    const std::string type = text(o, "type", where);
    if (type == "const_string") return g_.choice({g_.literal(text(o, "value", where))});
    if (type == "json_schema") return schema(o, "json_schema", where);
    if (type == "regex") return regular_expression(g_, source(o, "pattern", where), any_ascii());
    if (type == "grammar") return ebnf(g_, source(o, "grammar", where));
    if (type == "any_text") return until({}, excluded(o, where));
    if (type == "tag") {
      const Tag one = tag(o, where, depth);
      return g_.choice({join({g_.literal(one.begin), one.rest})});
    }
    if (type == "triggered_tags")
      return triggered({.triggers = words(o, "triggers", where),
                        .tags = tags(o, "tags", where, depth),
                        .excludes = excluded(o, where),
                        .at_least_one = flag(o, "at_least_one", where),
                        .stop_after_first = flag(o, "stop_after_first", where)},
                       where);
    if (type == "tags_with_separator") return separated(o, where, depth);
    if (type == "sequence" || type == "or") {
      std::vector<Sequence> parts;
      const json::array& elements = list(o, "elements", where);
      for (size_t i = 0; i < elements.size(); ++i)
        parts.push_back({format(elements[i], fmt::format("{}.elements[{}]", where, i), depth + 1)});
      return type == "or" ? g_.choice(std::move(parts)) : g_.choice({join(parts)});
    }
    for (const auto& [name, least, most] : {std::tuple("optional", 0, 1), {"star", 0, -1}, {"plus", 1, -1}})
      if (type == name) {
        const json::value* content = o.if_contains("content");
        if (!content) reject(where, "lacks content");
        return g_.repeat({format(*content, where + ".content", depth + 1)}, least, most);
      }
    reject(
        where,
        fmt::format("has the type \"{}\"; expected const_string, json_schema, regex, grammar, any_text, tag, "
                    "triggered_tags, tags_with_separator, sequence, or, optional, star or plus",
                    type.substr(0, 80)));
  }

  Symbol schema(const json::object& o, const char* key, const std::string& where) {
    if (const json::value* style = o.if_contains("style"); style && *style != "json")
      reject(where, "has a style other than json, which is not supported");
    const json::value* schema = o.if_contains(key);
    if (!schema) reject(where, fmt::format("lacks {}", key));
    return json_schema(g_, *schema, *schema);
  }
  static std::string_view source(const json::object& o, const char* key, const std::string& where) {
    const json::value* value = o.if_contains(key);
    if (!value || !value->is_string()) reject(where, fmt::format("lacks {}, a string", key));
    return std::string_view(value->get_string());
  }

  // Any text that holds none of `excludes`; with `ends`, it goes on to the first of them.
  Symbol until(const std::vector<std::string>& ends, const std::vector<std::string>& excludes) {
    std::vector<Watched> watched;
    for (const std::string& end : ends) watched.push_back({end, Sequence{}});
    for (const std::string& word : excludes) watched.push_back({word, std::nullopt});
    const int32_t rule = g_.new_rule();
    FreeText(g_, rule, std::move(watched), ends.empty());
    return Grammar::rule(rule);
  }

  Tag tag(const json::object& o, const std::string& where, int depth) {
    Tag out{.begin = text(o, "begin", where), .rest = {}};
    std::vector<std::string> ends;
    if (const json::value* end = o.if_contains("end"); end && end->is_array())
      for (const json::value& one : list(o, "end", where)) ends.push_back(text(one, where + ".end"));
    else
      ends.push_back(text(o, "end", where));
    const bool empty = std::any_of(ends.begin(), ends.end(), [](const auto& end) { return end.empty(); });
    std::vector<Sequence> endings;
    for (const std::string& end : ends) endings.push_back(g_.literal(end));
    const json::value* content = o.if_contains("content");
    if (!content) {  // the older notation
      out.rest = {schema(o, "schema", where), g_.choice(std::move(endings))};
      return out;
    }
    const json::object& inner = object(*content, where + ".content");
    const json::value* type = inner.if_contains("type");
    if (type && *type == "any_text" && !empty)
      out.rest = {until(ends, excluded(inner, where + ".content"))};
    else
      out.rest = {format(*content, where + ".content", depth + 1), g_.choice(std::move(endings))};
    return out;
  }
  std::vector<Tag> tags(const json::object& o, const char* key, const std::string& where, int depth) {
    std::vector<Tag> out;
    const json::array& all = list(o, key, where);
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string place = fmt::format("{}.{}[{}]", where, key, i);
      out.push_back(tag(object(all[i], place), place, depth + 1));
    }
    return out;
  }

  Symbol triggered(const Triggers& all, const std::string& where) {
    const int32_t more = g_.new_rule();
    std::vector<Watched> watched;
    std::vector<bool> used(all.tags.size());
    for (const std::string& trigger : all.triggers) {
      std::vector<Sequence> alternatives;
      for (size_t i = 0; i < all.tags.size(); ++i) {
        if (!all.tags[i].begin.starts_with(trigger)) continue;
        used[i] = true;
        alternatives.push_back(
            join({g_.literal(all.tags[i].begin.substr(trigger.size())), all.tags[i].rest}));
      }
      if (alternatives.empty())
        reject(where, fmt::format("has the trigger \"{}\", with which no tag begins", trigger));
      Sequence then = {g_.choice(std::move(alternatives))};
      if (!all.stop_after_first) then.push_back(Grammar::rule(more));
      watched.push_back({trigger, std::move(then)});
    }
    for (size_t i = 0; i < used.size(); ++i)
      if (!used[i])
        reject(where,
               fmt::format("has a tag that begins with none of the triggers: \"{}\"", all.tags[i].begin));
    for (const std::string& word : all.excludes) watched.push_back({word, std::nullopt});
    FreeText(g_, more, watched, true);
    if (!all.at_least_one) return Grammar::rule(more);
    const int32_t first = g_.new_rule();
    FreeText(g_, first, std::move(watched), false);
    return Grammar::rule(first);
  }

  Symbol separated(const json::object& o, const std::string& where, int depth) {
    std::vector<Sequence> alternatives;
    for (const Tag& one : tags(o, "tags", where, depth))
      alternatives.push_back(join({g_.literal(one.begin), one.rest}));
    const Symbol one = g_.choice(std::move(alternatives));
    Sequence all = {one};
    if (!flag(o, "stop_after_first", where))
      all.push_back(g_.repeat(join({g_.literal(text(o, "separator", where)), {one}}), 0, -1));
    const Symbol many = g_.choice({std::move(all)});
    return flag(o, "at_least_one", where) ? many : g_.optional({many});
  }

  Grammar& g_;
  const Vocabulary& vocabulary_;
};

}  // namespace

Symbol structural_tag(Grammar& grammar, const json::value& tag, const Vocabulary& vocabulary) {
  return TagReader(grammar, vocabulary).read(tag);
}

}  // namespace perigee
