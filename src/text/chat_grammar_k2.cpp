#include "text/chat_grammar_k2.h"

#include <boost/json.hpp>

#include "base/error.h"
#include "text/grammar_sources.h"

namespace perigee {

namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;

constexpr int kLongestPreamble = 256;  // bytes before a call that must come
constexpr int kMostCalls = 128;

// Always an object: a call of anything else is none.
Symbol arguments_of(Grammar& g, const AnswerShape::Tool& tool) {
  if (!tool.parameters) return g.choice({g.literal("{}")});
  const boost::json::object* schema = tool.parameters->if_object();
  if (schema && !schema->contains("properties") && !schema->contains("type")) return any_json(g, true);
  return json_schema(g, *tool.parameters, *tool.parameters);
}

}  // namespace

void k2_answer_grammar(Grammar& g, const Vocabulary& vocabulary, const AnswerShape& shape, bool thinks) {
  const auto control = [&](std::string_view name) -> Sequence {
    const auto id = vocabulary.control_id(name);
    if (!id) fail(ErrorCode::kUnsupported, "the vocabulary has no {}, which calls need", name);
    return {Grammar::control(*id)};
  };
  ByteSet all, digits;
  for (char c = '0'; c <= '9'; ++c) digits.set(static_cast<uint8_t>(c));
  const Symbol any_byte = g.bytes(all.set()), any_text = g.repeat({any_byte}, 0, -1);
  Sequence head;
  if (thinks) head = join({{any_text}, control("</think>")});

  std::vector<Sequence> rests;
  if (!shape.must_call) rests.push_back({shape.content.value_or(any_text)});
  if (!shape.tools.empty()) {
    std::vector<Sequence> forms;
    for (const AnswerShape::Tool& tool : shape.tools) {
      const Symbol arguments = arguments_of(g, tool);
      forms.push_back(join({control("<|tool_call_begin|>"),
                            g.literal("functions." + tool.name + ":"),
                            {g.repeat({g.bytes(digits)}, 1, 4)},
                            control("<|tool_call_argument_begin|>"),
                            {arguments},
                            control("<|tool_call_end|>")}));
    }
    const Symbol call = g.choice(std::move(forms));
    const Symbol preamble = shape.must_call ? g.repeat({any_byte}, 0, kLongestPreamble)
                            : shape.content ? g.choice({Sequence{}})
                                            : any_text;
    rests.push_back(join({{preamble},
                          control("<|tool_calls_section_begin|>"),
                          {shape.one_call ? call : g.repeat({call}, 1, kMostCalls)},
                          control("<|tool_calls_section_end|>")}));
  }
  g.add(0, join({head, {g.choice(std::move(rests))}}));
}

}  // namespace perigee
