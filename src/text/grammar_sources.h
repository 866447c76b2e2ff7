// Where grammars come from: JSON schemas, regular expressions, EBNF, structural tags. Each gives a symbol of
// the grammar, so that they combine. What a source cannot say is refused with Error{kBadRequest} that names
// it; what is taken is kept to the letter, or more narrowly (keys in the schema's order, no undeclared ones
// beside declared ones).
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"

namespace perigee {

// Any character of well-formed UTF-8 whose ASCII part lies in `ascii`.
Grammar::Symbol character(Grammar& grammar, const ByteSet& ascii);
// All of ASCII; what a JSON string may hold unescaped.
ByteSet any_ascii();
ByteSet plain_json_ascii();

// Any JSON value, or any object.
Grammar::Symbol any_json(Grammar& grammar, bool object_only = false);
// JSON text that satisfies the schema; `root` is what its $refs point into.
Grammar::Symbol json_schema(Grammar& grammar, const boost::json::value& schema,
                            const boost::json::value& root);
// The schema without the keywords that json_schema refuses, for those who would rather have a call that may
// break them than none: it takes at least what `schema` takes. `dropped` gets the places of the keywords
// taken away, from `where` on.
boost::json::value relaxed_schema(const boost::json::value& schema, const std::string& where,
                                  std::vector<std::string>& dropped);
// The values that a schema with const or enum allows, those of its type alone; none without these keywords.
std::vector<boost::json::value> allowed_values(const boost::json::object& schema, const std::string& where);

// The whole of a text matches: ^ and $ at its ends change nothing. `allowed` narrows every character (JSON
// strings).
Grammar::Symbol regular_expression(Grammar& grammar, std::string_view pattern, const ByteSet& allowed);

// rule ::= "text" | [a-z] other (…)* x+ y? z{1,3}; the text is `root`.
Grammar::Symbol ebnf(Grammar& grammar, std::string_view source);

// vLLM's and xgrammar's structural tags. Their texts may not hold names of the vocabulary's control tokens.
Grammar::Symbol structural_tag(Grammar& grammar, const boost::json::value& tag, const Vocabulary& vocabulary);

}  // namespace perigee
