#include "serve/tokenize.h"

#include <boost/json.hpp>

#include "serve/chat_completion.h"
#include "serve/logprobs_json.h"
#include "text/utf8.h"

namespace perigee::serve {

namespace json = boost::json;

json::object tokenize(std::string_view text, const ServedModel& model) {
  const json::object object = parse_body(text);
  BodyFields body(object);
  check_model_name(body, model);
  std::vector<int32_t> ids;
  if (body.has("messages")) {
    if (body.has("prompt"))
      fail(ErrorCode::kBadRequest, "both prompt and messages are given; send one of them");
    const ChatPrompt prompt = read_chat_prompt(body, model);
    ids = model.tokenizer.encode(model.format->render(*prompt.messages, prompt.options));
  } else if (const auto prompt = body.string("prompt", SIZE_MAX)) {
    ids = model.tokenizer.encode(*prompt);
  } else {
    body.reject("prompt", "a string, or \"messages\" in its place");
  }
  json::object out = {
      {"count", ids.size()}, {"max_model_len", model.max_model_len}, {"tokens", json::value_from(ids)}};
  if (body.boolean("return_token_strs").value_or(false)) {
    json::array strings;
    for (int32_t id : ids) strings.push_back(json::string(token_text(model.tokenizer, id)));
    out["token_strs"] = std::move(strings);
  }
  return out;
}

json::object detokenize(std::string_view text, const ServedModel& model) {
  const json::object object = parse_body(text);
  BodyFields body(object);
  check_model_name(body, model);
  if (!body.has("tokens")) body.reject("tokens", "a list of token ids");
  const std::vector<int32_t> ids = body.token_ids("tokens", model.vocabulary());
  return {{"prompt", replace_invalid_utf8(model.tokenizer.decode(ids))}};
}

}  // namespace perigee::serve
