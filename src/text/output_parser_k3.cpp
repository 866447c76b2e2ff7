#include "text/output_parser_k3.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/json_text.h"

namespace perigee {
namespace {

namespace json = boost::json;

constexpr size_t kLongestTag = 16 << 10;  // bytes; a longer one is text, so that a stream cannot stall on it

std::string unescape(std::string_view value) {
  std::string out(value);
  const auto replace = [&](std::string_view from, char to) {
    for (size_t at = 0; (at = out.find(from, at)) != std::string::npos; ++at)
      out.replace(at, from.size(), 1, to);
  };
  replace("&quot;", '"');  // first: "&amp;quot;" is an escaped "&quot;"
  replace("&amp;", '&');
  return out;
}

// A number as JSON: an integer where its value is one.
std::string number_text(std::string_view literal, const json::value& number) {
  if (!number.is_double()) return std::string(literal);
  const double x = number.get_double();
  const bool is_integer_literal = literal.find_first_of(".eE") == std::string_view::npos;
  if (!is_integer_literal && std::fabs(x) < 0x1p53 && x == std::floor(x))
    return fmt::format("{:.0f}", x + 0.0);
  return std::string(literal);  // digits beyond a double's stay as written
}

// The JSON of an argument's text, by its declared type; a text that is not of that type is a string.
std::string argument_json(std::string_view type, std::string_view text) {
  if (type == "string") return json_string(text);
  const std::string_view literal = strip(text);
  const auto value = parse_json(literal);
  if (value) {
    if (type == "number" && value->is_number()) return number_text(literal, *value);
    const bool same = (type == "boolean" && value->is_bool()) || (type == "null" && value->is_null()) ||
                      (type == "object" && value->is_object()) || (type == "array" && value->is_array());
    if (same) return std::string(literal);
  }
  return json_string(text);
}

}  // namespace

std::string CallIds::next() const { return fmt::format("call_{:016x}", hash_); }

K3OutputParser::K3OutputParser(const Tokenizer& tokenizer, bool thinking, std::string_view call_id_salt)
    : tokenizer_(tokenizer), call_ids_(call_id_salt), place_(thinking ? Place::kThink : Place::kResponse) {
  const auto id = [&](std::string_view name) { return tokenizer.vocabulary().control_id(name).value_or(-1); };
  open_ = id("<|open|>");
  close_ = id("<|close|>");
  sep_ = id("<|sep|>");
  end_ = id("<|end_of_msg|>");
  eos_ = id("[EOS]");
  if (open_ < 0 || close_ < 0 || sep_ < 0)
    fail(ErrorCode::kUnsupported,
         "the vocabulary has no <|open|>, <|close|>, <|sep|>: it is not of the K3 family");
}

const std::string* K3OutputParser::Tag::attribute(std::string_view key) const {
  for (const auto& [name, value] : attributes)
    if (name == key) return &value;
  return nullptr;
}

// name { SP key="value" }
bool K3OutputParser::parse_tag(std::string_view text, Tag& tag) {
  const size_t space = text.find(' ');
  tag.name = std::string(text.substr(0, space));
  text.remove_prefix(tag.name.size());
  while (!text.empty()) {
    const size_t equals = text.find("=\"");
    if (text[0] != ' ' || equals == std::string_view::npos || equals == 1) return false;
    const size_t quote = text.find('"', equals + 2);
    if (quote == std::string_view::npos) return false;
    tag.attributes.emplace_back(text.substr(1, equals - 1),
                                unescape(text.substr(equals + 2, quote - equals - 2)));
    text.remove_prefix(quote + 1);
  }
  return !tag.name.empty();
}

std::string_view K3OutputParser::name_of(Place place) {
  switch (place) {
    case Place::kMessage:
      return "message";
    case Place::kThink:
      return "think";
    case Place::kResponse:
      return "response";
    case Place::kTools:
      return "tools";
    case Place::kCall:
      return "call";
    case Place::kArgument:
      return "argument";
    case Place::kJson:
      return "json";
  }
  return "";
}

void K3OutputParser::on_token(int32_t id, Delta& delta) {
  call_ids_.see(id);
  if (id == open_ || id == close_) {
    abandon_tag(delta);
    release(stream_.flush(), delta);
    marker_ = id;
  } else if (id == sep_) {
    if (marker_ >= 0) end_tag(delta);  // one without a tag before it says nothing
  } else if (id == end_ || id == eos_) {
    on_end(delta);
  } else if (id >= 0 && id < tokenizer_.vocabulary().base_size()) {
    const std::string_view bytes = tokenizer_.vocabulary().bytes(id);
    if (marker_ >= 0)
      tag_ += bytes;
    else
      text(bytes, delta);
    if (tag_.size() > kLongestTag) abandon_tag(delta);
  }  // any other id is a control token without a meaning here: not text
}

// What the end cuts in two, a tag or a call, is not shown: half of it would be mark-up in the text.
void K3OutputParser::on_end(Delta& delta) {
  marker_ = -1;
  tag_.clear();
  call_ = {};
  release(stream_.flush(), delta);
  place_ = Place::kMessage;
}

// Bytes of the place we are in.
void K3OutputParser::text(std::string_view bytes, Delta& delta) {
  if (place_ < Place::kCall) return release(stream_.push(bytes), delta);
  call_.raw += bytes;
  if (place_ == Place::kCall)
    call_.broken |= !strip(bytes).empty();
  else
    call_.value += bytes;
}

// Bytes that end between characters, to where the place's text goes.
void K3OutputParser::release(std::string_view bytes, Delta& delta) {
  (place_ == Place::kThink ? delta.reasoning : delta.content) += replace_invalid_utf8(bytes);
}

// The tag being read turns out to be none: what stands in it is text, its beginning is not.
void K3OutputParser::abandon_tag(Delta& delta) {
  if (marker_ < 0) return;
  marker_ = -1;
  text(std::exchange(tag_, {}), delta);
}

void K3OutputParser::end_tag(Delta& delta) {
  const bool opens = marker_ == open_;
  const std::string inside = replace_invalid_utf8(std::exchange(tag_, {}));
  const std::string literal = (opens ? "<|open|>" : "<|close|>") + inside + "<|sep|>";
  marker_ = -1;
  Tag tag;
  const bool known = parse_tag(inside, tag) && (opens ? open(tag) : close(tag, literal, delta));
  if (!known)
    text(literal, delta);
  else if (place_ >= Place::kCall && opens)
    call_.raw += literal;
}

// Enters the element if it may stand here.
bool K3OutputParser::open(const Tag& tag) {
  const auto enter = [&](Place place) {
    place_ = place;
    return true;
  };
  if (place_ == Place::kMessage) {
    if (tag.name == "think") return enter(Place::kThink);
    if (tag.name == "response") return enter(Place::kResponse);
    if (tag.name == "tools") return enter(Place::kTools);
  } else if (place_ == Place::kTools && tag.name == "call") {
    const std::string* name = tag.attribute("tool");
    if (!name || name->empty()) return false;
    call_ = {};
    call_.name = *name;
    return enter(Place::kCall);
  } else if (place_ == Place::kCall && (tag.name == "argument" || tag.name == "json")) {
    const std::string* key = tag.attribute("key");
    const std::string* type = tag.attribute("type");
    if (tag.name == "argument" && !key) return false;
    call_.key = key ? *key : "";
    call_.type = type ? *type : "string";
    call_.value.clear();
    return enter(tag.name == "json" ? Place::kJson : Place::kArgument);
  }
  return false;
}

// Leaves the element if the tag closes the innermost one.
bool K3OutputParser::close(const Tag& tag, std::string_view literal, Delta& delta) {
  if (tag.name != name_of(place_) || !tag.attributes.empty()) return false;
  switch (place_) {
    case Place::kMessage:
    case Place::kThink:
    case Place::kResponse:
    case Place::kTools:
      place_ = Place::kMessage;
      break;
    case Place::kArgument: {
      const std::string member =
          json_string(call_.key) + ": " + argument_json(call_.type, replace_invalid_utf8(call_.value));
      call_.arguments += (call_.arguments.empty() ? "" : ", ") + member;
      call_.broken |= call_.has_json || !call_.keys.insert(call_.key).second;
      call_.raw += literal;
      place_ = Place::kCall;
      break;
    }
    case Place::kJson: {
      // The whole of the arguments, when it is an object and stands alone.
      const std::string object = replace_invalid_utf8(strip(call_.value));
      const auto value = parse_json(object);
      call_.broken |= call_.has_json || !call_.arguments.empty() || !value || !value->is_object();
      call_.has_json = true;
      call_.arguments = object.size() < 2 ? "" : object.substr(1, object.size() - 2);
      call_.raw += literal;
      place_ = Place::kCall;
      break;
    }
    case Place::kCall:
      call_.raw += literal;
      end_call(delta);
      break;
  }
  return true;
}

void K3OutputParser::end_call(Delta& delta) {
  place_ = Place::kTools;
  Call call = std::exchange(call_, {});
  if (call.broken) return text(call.raw, delta);
  delta.tool_calls.push_back(
      {.id = call_ids_.next(), .name = std::move(call.name), .arguments = "{" + call.arguments + "}"});
}

}  // namespace perigee
