// Grammars behind a pipe, for test_xgrammar_oracle.py. Reads a JSON object a line, {"kind": "json" | "regex"
// | "ebnf", "source": …, "texts": [string, …]}, and writes one: {"takes": [bool, …]}, or {"error": string}
// for a source that is refused.
#include <boost/json.hpp>
#include <iostream>
#include <string>

#include "base/error.h"
#include "text/grammar_sources.h"
#include "text/tokenizer.h"

namespace json = boost::json;
using namespace perigee;

namespace {

Grammar::Symbol compile(Grammar& grammar, const json::object& line) {
  const json::value& source = line.at("source");
  if (line.at("kind") == "json") return json_schema(grammar, source, source);
  const std::string_view text = source.get_string();
  return line.at("kind") == "regex" ? regular_expression(grammar, text, any_ascii()) : ebnf(grammar, text);
}

bool takes(GrammarMachine& machine, const std::vector<int32_t>& ids) {
  const GrammarMachine::State* state = machine.start();
  for (size_t i = 0; i < ids.size() && state; ++i) state = machine.after(state, ids[i]);
  return state && machine.whole(state);
}

json::object answer(const json::object& line, const Tokenizer& tokenizer,
                    const std::shared_ptr<const TokenTree>& tree) {
  try {
    Grammar grammar;
    grammar.new_rule();
    const Grammar::Symbol symbol = compile(grammar, line);
    grammar.add(0, {symbol});
    GrammarMachine machine(std::move(grammar), tree, {});
    json::array out;
    for (const json::value& text : line.at("texts").as_array())
      out.push_back(takes(machine, tokenizer.encode(std::string_view(text.get_string()))));
    return {{"takes", std::move(out)}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  const Tokenizer tokenizer = Tokenizer::load("models/tiny-k31");
  const auto tree = std::make_shared<const TokenTree>(tokenizer.vocabulary());
  for (std::string line; std::getline(std::cin, line);)
    std::cout << json::serialize(answer(json::parse(line).as_object(), tokenizer, tree)) << "\n"
              << std::flush;
  return 0;
}
