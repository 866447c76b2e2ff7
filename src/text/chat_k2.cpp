// The turns of Kimi K2 and Kimi-Linear: a role token, the name, <|im_middle|>, the body, <|im_end|>. Text
// between two control tokens is one segment, as when the reference tokenises its rendered template. Where the
// vocabulary has <think>, assistant bodies begin with their reasoning.
#include <boost/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "text/chat.h"
#include "text/chat_grammar_k2.h"
#include "text/chat_messages.h"
#include "text/json_text.h"
#include "text/output_parser_k2.h"

namespace perigee {
namespace {

namespace json = boost::json;

class TurnWriter {
 public:
  void control(std::string_view name) { segments_.push_back({std::string(name), true}); }
  void text(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().control) segments_.push_back({});
    segments_.back().text += text;
  }
  void begin(std::string_view role, std::string_view name) {
    control(role);
    text(name);
    control("<|im_middle|>");
  }
  void turn(std::string_view role, std::string_view name, const std::vector<std::string>& parts) {
    begin(role, name);
    for (const std::string& part : parts) text(part);
    control("<|im_end|>");
  }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

class K2Format : public ChatFormat {
 public:
  explicit K2Format(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        thinks_(tokenizer.vocabulary().has_control("<think>") &&
                tokenizer.vocabulary().has_control("</think>")) {}

  std::vector<Segment> render(const json::array& messages, const ChatOptions& options) const override {
    refuse_unsupported(options);
    // Tool results stay in the caller's order, unlike K3's: the published template writes them as they come,
    // and each carries the id of its call.
    const std::vector<Message> history = read_messages(messages);
    // Reasoning is kept only after the last whole answer: in the tool round that is still going on.
    size_t open_round = 0;
    for (size_t i = 0; i < history.size(); ++i)
      if (history[i].role == Role::kAssistant && history[i].calls.empty()) open_round = i + 1;

    TurnWriter out;
    if (options.tools && !options.tools->empty() && options.tool_choice != "none")
      out.turn("<|im_system|>", "tool_declare", {json_text(*options.tools, JsonSpacing::kCompact)});
    if (history.empty() || history[0].role != Role::kSystem)
      out.turn("<|im_system|>", "system", {"You are Kimi, an AI assistant created by Moonshot AI."});

    // The model writes functions.NAME:INDEX for ids, counted over the conversation; other ids are put in that
    // form.
    std::unordered_map<std::string, std::string> rendered_ids;
    size_t calls = 0;
    for (size_t i = 0; i < history.size(); ++i) {
      const Message& message = history[i];
      const auto name_or = [&](std::string_view role) {
        return message.name.empty() ? std::string(role) : message.name;
      };
      if (message.role == Role::kUser) {
        out.turn("<|im_user|>", name_or("user"), message.parts);
      } else if (message.role == Role::kSystem) {
        out.turn("<|im_system|>", name_or("system"), message.parts);
      } else if (message.role == Role::kTool) {
        const auto known = rendered_ids.find(message.call_id);
        std::vector<std::string> parts = message.parts;
        parts.insert(
            parts.begin(),
            "## Return of " + (known == rendered_ids.end() ? message.call_id : known->second) + "\n");
        out.turn("<|im_system|>", name_or("tool"), parts);
      } else {
        out.begin("<|im_assistant|>", name_or("assistant"));
        if (thinks_)
          write_thinking(out, i >= open_round ? std::string_view(message.reasoning) : std::string_view());
        for (const std::string& part : message.parts) out.text(part);
        if (!message.calls.empty()) out.control("<|tool_calls_section_begin|>");
        for (const HistoryCall& call : message.calls) {
          const std::string id = "functions." + call.name + ":" + std::to_string(calls++);
          if (!call.id.empty()) rendered_ids[call.id] = id;
          out.control("<|tool_call_begin|>");
          out.text(id);
          out.control("<|tool_call_argument_begin|>");
          out.text(call.text);
          out.control("<|tool_call_end|>");
        }
        if (!message.calls.empty()) out.control("<|tool_calls_section_end|>");
        out.control("<|im_end|>");
      }
    }
    if (options.add_generation_prompt) {
      out.begin("<|im_assistant|>", "assistant");
      if (thinks_) out.control("<think>");
      if (thinks_ && !options.thinking) out.control("</think>");
    }
    return out.take();
  }

  std::unique_ptr<OutputParser> parser(bool thinking, std::string_view call_id_salt) const override {
    return std::make_unique<K2OutputParser>(tokenizer_, thinking, call_id_salt);
  }

  void answer_grammar(Grammar& grammar, const AnswerShape& shape) const override {
    k2_answer_grammar(grammar, tokenizer_.vocabulary(), shape, thinks_ && shape.thinking);
  }

  std::vector<int32_t> stop_ids() const override {
    std::vector<int32_t> ids;
    for (std::string_view name : {"<|im_end|>", "[EOS]"})
      if (const auto id = tokenizer_.vocabulary().control_id(name)) ids.push_back(*id);
    return ids;
  }

 private:
  // The format has no words for an effort; ignoring it would change what the caller asked for. Calls that
  // must come are the answer grammar's alone.
  static void refuse_unsupported(const ChatOptions& options) {
    const std::string& choice = options.tool_choice;
    if (!choice.empty() && choice != "auto" && choice != "none" && choice != "required")
      fail(ErrorCode::kBadRequest, "tool_choice \"{}\" is unknown; expected auto, none or required", choice);
    if (options.thinking_effort)
      fail(ErrorCode::kUnsupported, "K2-style prompts have no thinking effort; leave it out");
  }

  static void write_thinking(TurnWriter& out, std::string_view reasoning) {
    out.control("<think>");
    out.text(reasoning);
    out.control("</think>");
  }

  Tokenizer tokenizer_;
  bool thinks_;
};

}  // namespace

std::unique_ptr<ChatFormat> make_k2_format(const Tokenizer& tokenizer) {
  return std::make_unique<K2Format>(tokenizer);
}

}  // namespace perigee
