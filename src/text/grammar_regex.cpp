// Regular expressions and EBNF: two notations over the same parts (character classes, groups, repetitions).
#include <algorithm>
#include <map>

#include "base/error.h"
#include "text/grammar_sources.h"
#include "text/utf8.h"

namespace perigee {

namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;

constexpr int kMostRepeats = 16384, kDeepestGroup = 64;

// What both notations read the same way.
class Reader {
 public:
  Reader(Grammar& grammar, std::string_view text, const ByteSet& allowed, const char* what)
      : g_(grammar), text_(text), allowed_(allowed), what_(what) {
    if (!is_valid_utf8(text_)) reject("is not UTF-8");
  }

 protected:
  [[noreturn]] void reject(std::string_view why) const {
    fail(ErrorCode::kBadRequest, "the {} {} (at character {})", what_, why, at_);
  }
  bool end() const { return at_ >= text_.size(); }
  char peek() const { return end() ? '\0' : text_[at_]; }
  char take() {
    if (end()) reject("ends too early");
    return text_[at_++];
  }
  bool accept(char c) {
    if (end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  static ByteSet digits() { return span('0', '9'); }
  static ByteSet word() { return span('0', '9') | span('a', 'z') | span('A', 'Z') | span('_', '_'); }
  static ByteSet white() {
    ByteSet set;
    for (const char c : std::string_view(" \t\n\r\f\v")) set.set(static_cast<uint8_t>(c));
    return set;
  }
  static ByteSet span(int low, int high) {
    ByteSet set;
    for (int byte = low; byte <= high; ++byte) set.set(static_cast<size_t>(byte));
    return set;
  }

  // After a backslash: a class (true, in `set`), or one byte (in `set` too).
  bool escape(ByteSet& set) {
    const char c = take();
    set.reset();
    switch (c) {
      case 'd':
        set = digits();
        return true;
      case 'D':
        set = any_ascii() & ~digits();
        return true;
      case 'w':
        set = word();
        return true;
      case 'W':
        set = any_ascii() & ~word();
        return true;
      case 's':
        set = white();
        return true;
      case 'S':
        set = any_ascii() & ~white();
        return true;
      case 'n':
        set.set('\n');
        return false;
      case 'r':
        set.set('\r');
        return false;
      case 't':
        set.set('\t');
        return false;
      default:
        if (std::isalnum(static_cast<unsigned char>(c)))
          reject(fmt::format("has \\{}, which is not supported", c));
        set.set(static_cast<uint8_t>(c));
        return false;
    }
  }

  // After "[".
  Symbol character_class() {
    const bool negated = accept('^');
    ByteSet set;
    for (bool first = true; first || peek() != ']'; first = false) {
      ByteSet one;
      if (static_cast<uint8_t>(peek()) >= 0x80)
        reject("has a character class with a letter beyond ASCII, which is not supported");
      const char low = take();
      bool is_class = false;
      if (low == '\\')
        is_class = escape(one);
      else
        one.set(static_cast<uint8_t>(low));
      if (!is_class && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        take();
        ByteSet upper;
        const char high = take();
        if (high == '\\' ? escape(upper) : false) reject("has a range that ends in a class");
        if (high != '\\') upper.set(static_cast<uint8_t>(high));
        const size_t from = one._Find_first(), to = upper._Find_first();
        if (to > 127 || from > to) reject("has a range that runs backwards or beyond ASCII");
        one = span(static_cast<int>(from), static_cast<int>(to));
      }
      set |= one;
    }
    take();
    return negated ? character(g_, any_ascii() & ~set & allowed_) : narrowed(set);
  }

  Symbol narrowed(const ByteSet& set) {
    if ((set & allowed_).none()) reject("asks for a character that cannot stand here");
    return g_.bytes(set & allowed_);
  }

  // One character of the text itself: all of its bytes.
  Sequence plain(char first) {
    if (static_cast<uint8_t>(first) < 0x80) {
      ByteSet one;
      one.set(static_cast<uint8_t>(first));
      return {narrowed(one)};
    }
    std::string bytes(1, first);
    while (!end() && (static_cast<uint8_t>(peek()) & 0xC0) == 0x80) bytes += take();
    return g_.literal(bytes);
  }

  // *, +, ? or {m,n} behind `item`.
  Sequence repeated(Sequence item) {
    for (;;) {
      if (accept('*')) {
        item = {g_.repeat(item, 0, -1)};
      } else if (accept('+')) {
        item = {g_.repeat(item, 1, -1)};
      } else if (accept('?')) {
        item = {g_.optional(item)};
      } else if (peek() == '{') {
        take();
        const int least = number();
        const int most = accept(',') ? (peek() == '}' ? -1 : number()) : least;
        if (take() != '}' || (most >= 0 && most < least))
          reject("has a repetition that is not {m}, {m,} or {m,n}");
        item = {g_.repeat(item, least, most)};
      } else {
        return item;
      }
    }
  }
  int number() {
    int64_t value = -1;
    while (!end() && std::isdigit(static_cast<unsigned char>(peek())) && value <= kMostRepeats)
      value = std::max<int64_t>(value, 0) * 10 + (take() - '0');
    if (value < 0 || value > kMostRepeats)
      reject(fmt::format("has a repetition that is not from 0 to {}", kMostRepeats));
    return static_cast<int>(value);
  }

  Grammar& g_;
  std::string_view text_;
  const ByteSet allowed_;
  const char* what_;
  size_t at_ = 0;
  int depth_ = 0;
};

class RegexReader : public Reader {
 public:
  RegexReader(Grammar& grammar, std::string_view text, const ByteSet& allowed)
      : Reader(grammar, text, allowed, "regular expression") {}

  Symbol read() {
    accept('^');
    const Symbol all = alternatives();
    if (!end()) reject("has a ) without its (");
    return all;
  }

 private:
  Symbol alternatives() {
    if (++depth_ > kDeepestGroup) reject("nests its groups too deep");
    std::vector<Sequence> out;
    do out.push_back(sequence());
    while (accept('|'));
    --depth_;
    return g_.choice(std::move(out));
  }

  Sequence sequence() {
    Sequence out;
    while (!end() && peek() != '|' && peek() != ')') {
      if (peek() == '$' && at_ + 1 == text_.size()) {
        ++at_;
        break;
      }
      const Sequence item = repeated(atom());
      out.insert(out.end(), item.begin(), item.end());
    }
    return out;
  }

  Sequence atom() {
    const char c = take();
    if (c == '(') {
      if (accept('?') && !accept(':')) reject("has a (?…) other than (?:…), which is not supported");
      const Symbol inside = alternatives();
      if (!accept(')')) reject("has a ( without its )");
      return {inside};
    }
    if (c == '[') return {character_class()};
    if (c == '.') {
      ByteSet set = any_ascii() & allowed_;
      return {character(g_, set.reset('\n'))};
    }
    if (c == '\\') {
      ByteSet set;
      escape(set);
      return {narrowed(set)};
    }
    if (std::string_view("*+?{^$").find(c) != std::string_view::npos)
      reject(fmt::format("has a {} where a character is expected", c));
    return plain(c);
  }
};

class EbnfReader : public Reader {
 public:
  EbnfReader(Grammar& grammar, std::string_view text) : Reader(grammar, text, any_ascii(), "grammar") {}

  Symbol read() {
    for (skip(); !end(); skip()) {
      const std::string name = identifier();
      skip();
      for (const char c : std::string_view("::="))
        if (take() != c) reject("has a rule without ::=");
      const int32_t rule = rule_named(name);
      if (!g_.rules()[static_cast<size_t>(rule)].empty()) reject(fmt::format("defines {} twice", name));
      g_.add(rule, {alternatives(true)});
    }
    for (const auto& [name, rule] : rules_)
      if (g_.rules()[static_cast<size_t>(rule)].empty())
        reject(fmt::format("uses {} and does not define it", name));
    if (!rules_.contains("root")) reject("has no rule named root");
    return Grammar::rule(rules_.at("root"));
  }

 private:
  void skip() {
    for (;;) {
      while (!end() && std::isspace(static_cast<unsigned char>(peek()))) ++at_;
      if (peek() != '#') return;
      while (!end() && peek() != '\n') ++at_;
    }
  }
  std::string identifier() {
    std::string name;
    while (!end() && (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_' || peek() == '-'))
      name += take();
    if (name.empty()) reject("has no name where one is expected");
    return name;
  }
  int32_t rule_named(const std::string& name) {
    const auto known = rules_.find(name);
    return known != rules_.end() ? known->second : rules_.emplace(name, g_.new_rule()).first->second;
  }
  // Whether a new rule begins here: a name, and ::=.
  bool at_rule() {
    const size_t here = at_;
    while (!end() && (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_' || peek() == '-'))
      ++at_;
    const bool named = at_ > here;
    skip();
    const bool found = named && text_.substr(at_).starts_with("::=");
    at_ = here;
    return found;
  }

  Symbol alternatives(bool top) {
    if (++depth_ > kDeepestGroup) reject("nests its groups too deep");
    std::vector<Sequence> out;
    do {
      Sequence one;
      for (skip(); !end() && peek() != '|' && peek() != ')' && !(top && at_rule()); skip()) {
        const Sequence item = repeated(atom());
        one.insert(one.end(), item.begin(), item.end());
      }
      out.push_back(std::move(one));
    } while (accept('|'));
    --depth_;
    return g_.choice(std::move(out));
  }

  Sequence atom() {
    if (accept('(')) {
      const Symbol inside = alternatives(false);
      if (!accept(')')) reject("has a ( without its )");
      return {inside};
    }
    if (accept('[')) return {character_class()};
    if (accept('.')) return {character(g_, any_ascii())};
    if (accept('"')) {
      Sequence out;
      while (!accept('"')) {
        const char c = take();
        if (c == '\\') {
          ByteSet set;
          if (escape(set)) reject("has a class inside a text");
          out.push_back(g_.bytes(set));
        } else {
          const Sequence one = plain(c);
          out.insert(out.end(), one.begin(), one.end());
        }
      }
      return {g_.choice({std::move(out)})};
    }
    return {Grammar::rule(rule_named(identifier()))};
  }

  std::map<std::string, int32_t> rules_;
};

}  // namespace

Symbol regular_expression(Grammar& grammar, std::string_view pattern, const ByteSet& allowed) {
  return RegexReader(grammar, pattern, allowed).read();
}

Symbol ebnf(Grammar& grammar, std::string_view source) { return EbnfReader(grammar, source).read(); }

}  // namespace perigee
