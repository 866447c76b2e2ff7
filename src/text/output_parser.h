// A model's answer, parsed token by token into reasoning, content and tool calls. One parser serves streaming
// and whole answers: the deltas of push and flush, joined, are the message. Nothing a model writes is an
// error: a whole element that is not valid stays text, and one that the answer's end cuts is left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

struct ToolCall {
  std::string id;  // opaque
  std::string name;
  std::string arguments;  // a JSON object, as text

  bool operator==(const ToolCall&) const = default;
};

// What one token added. Both texts are well-formed UTF-8; a call appears once, when it is complete.
struct Delta {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
  bool operator==(const Delta&) const = default;
};

using ParsedMessage = Delta;

class OutputParser {
 public:
  virtual ~OutputParser() = default;

  Delta push(int32_t id) {
    Delta delta;
    on_token(id, delta);
    add(delta);
    return delta;
  }

  // The answer is over: what was held back of its text. Empty when called again.
  Delta flush() {
    Delta delta;
    on_end(delta);
    add(delta);
    return delta;
  }

  // The whole message; flushes first.
  ParsedMessage finish() {
    flush();
    return message_;
  }

 protected:
  virtual void on_token(int32_t id, Delta& delta) = 0;
  virtual void on_end(Delta& delta) = 0;

 private:
  void add(const Delta& delta) {
    message_.reasoning += delta.reasoning;
    message_.content += delta.content;
    message_.tool_calls.insert(message_.tool_calls.end(), delta.tool_calls.begin(), delta.tool_calls.end());
  }

  ParsedMessage message_;
};

// Names for tool calls that depend on the salt and every token so far, and on nothing else.
class CallIds {
 public:
  explicit CallIds(std::string_view salt) {
    for (char c : salt) mix(static_cast<uint8_t>(c));
  }
  void see(int32_t token) { mix(static_cast<uint32_t>(token)); }
  std::string next() const;

 private:
  void mix(uint64_t x) {
    hash_ = (hash_ ^ x) * 0x9E3779B97F4A7C15u;
    hash_ ^= hash_ >> 32;
  }
  uint64_t hash_ = 0xCBF29CE484222325u;
};

}  // namespace perigee
