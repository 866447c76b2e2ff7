#include "text/output_parser_k2.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <utility>

#include "text/json_text.h"

namespace perigee {
namespace {

// `functions.NAME:IDX` names the call to NAME; other forms are taken as they are.
std::string function_name(std::string_view id) {
  if (id.starts_with("functions.")) id.remove_prefix(std::string_view("functions.").size());
  const size_t colon = id.rfind(':');
  if (colon != std::string_view::npos) {
    const std::string_view index = id.substr(colon + 1);
    if (!index.empty() &&
        std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; }))
      id = id.substr(0, colon);
  }
  return std::string(id);
}

}  // namespace

K2OutputParser::K2OutputParser(const Tokenizer& tokenizer, bool thinking, std::string_view call_id_salt)
    : tokenizer_(tokenizer), call_ids_(call_id_salt) {
  // A name the vocabulary lacks gets -1, which no token has.
  const auto id = [&](std::string_view name) { return tokenizer.vocabulary().control_id(name).value_or(-1); };
  think_ = id("<think>");
  think_end_ = id("</think>");
  section_ = id("<|tool_calls_section_begin|>");
  section_end_ = id("<|tool_calls_section_end|>");
  call_begin_ = id("<|tool_call_begin|>");
  arguments_begin_ = id("<|tool_call_argument_begin|>");
  call_end_ = id("<|tool_call_end|>");
  im_end_ = id("<|im_end|>");
  eos_ = id("[EOS]");
  place_ = thinking && think_end_ >= 0 ? Place::kThink : Place::kContent;
}

void K2OutputParser::on_token(int32_t id, Delta& delta) {
  call_ids_.see(id);
  if (id < 0 || id >= tokenizer_.vocabulary().size()) return;
  if (!tokenizer_.vocabulary().is_control(id)) return text(tokenizer_.vocabulary().bytes(id), delta);
  if (id == think_) return enter(Place::kThink, delta);
  if (id == think_end_ || id == section_end_) return enter(Place::kContent, delta);
  if (id == section_) return enter(Place::kSection, delta);
  if (id == im_end_ || id == eos_) return on_end(delta);
  if (id == call_begin_ && place_ == Place::kSection) {
    enter(Place::kCallName, delta);
  } else if (id == arguments_begin_ && place_ == Place::kCallName) {
    place_ = Place::kArguments;
  } else if (id == call_end_ && place_ == Place::kArguments) {
    end_call(delta);
  } else if (id == call_begin_ || id == arguments_begin_ || id == call_end_) {
    text(tokenizer_.vocabulary().bytes(id), delta);
  }
}

// A call that the end cuts is not shown.
void K2OutputParser::on_end(Delta& delta) {
  if (place_ >= Place::kCallName) place_ = Place::kSection;
  call_name_.clear();
  arguments_.clear();
  enter(Place::kContent, delta);
}

void K2OutputParser::text(std::string_view bytes, Delta& delta) {
  if (place_ == Place::kCallName)
    call_name_ += bytes;
  else if (place_ == Place::kArguments)
    arguments_ += bytes;
  else
    (place_ == Place::kThink ? delta.reasoning : delta.content) += replace_invalid_utf8(stream_.push(bytes));
}

void K2OutputParser::enter(Place place, Delta& delta) {
  if (place_ >= Place::kCallName) drop_call(delta);
  (place_ == Place::kThink ? delta.reasoning : delta.content) += replace_invalid_utf8(stream_.flush());
  place_ = place;
}

// No call: its tokens are text.
void K2OutputParser::drop_call(Delta& delta) {
  std::string raw = "<|tool_call_begin|>" + std::exchange(call_name_, {});
  if (place_ == Place::kArguments) raw += "<|tool_call_argument_begin|>" + std::exchange(arguments_, {});
  place_ = Place::kSection;
  text(raw, delta);
}

void K2OutputParser::end_call(Delta& delta) {
  const std::string name = function_name(replace_invalid_utf8(strip(call_name_)));
  const std::string arguments = replace_invalid_utf8(strip(arguments_));
  const auto value = parse_json(arguments);
  if (name.empty() || !value || !value->is_object()) {
    drop_call(delta);
    return text("<|tool_call_end|>", delta);
  }
  place_ = Place::kSection;
  call_name_.clear();
  arguments_.clear();
  delta.tool_calls.push_back({.id = call_ids_.next(), .name = name, .arguments = arguments});
}

}  // namespace perigee
