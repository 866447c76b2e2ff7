#include "serve/text_completion.h"

#include <boost/json.hpp>
#include <ctime>
#include <deque>

#include "serve/api_error.h"
#include "serve/logprobs_json.h"
#include "serve/request_fields.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

constexpr size_t kMostPrompts = 1024;

struct Shape {
  ServedModel model;
  std::string id;
  int64_t created = 0;
  StreamFields stream;
  int n = 1;              // answers per prompt
  int alternatives = -1;  // of logprobs; negative: none
  TokenNames names = TokenNames::kText;
  bool echo = false, token_ids = false, show_control = false;
  int prompt_alternatives = -1;
  std::vector<std::vector<int32_t>> prompts;
};

class CompletionEnvelope : public Envelope {
 public:
  explicit CompletionEnvelope(Shape shape) : shape_(std::move(shape)), prompt_tokens_(shape_.prompts.size()) {
    for (size_t i = 0; i < shape_.prompts.size() * static_cast<size_t>(shape_.n); ++i)
      logprobs_.emplace_back(shape_.model.tokenizer,
                             CompletionLogprobs::Options{.alternatives = std::max(shape_.alternatives, 0),
                                                         .names = shape_.names,
                                                         .show_control = shape_.show_control});
    begun_.resize(logprobs_.size());
  }

  void prompt_logprobs(int prompt, std::vector<GeneratedToken> tokens) override {
    prompt_tokens_[prompt] = std::move(tokens);
  }

  std::string events(int index, const AnswerDelta& delta, const Usage& usage) override {
    json::object chunk = head();
    json::object one = choice(index, delta);
    one["finish_reason"] =
        delta.finish.empty() ? json::value(nullptr) : json::value(json::string(delta.finish));
    chunk["choices"] = json::array{std::move(one)};
    if (shape_.stream.continuous_usage)
      chunk["usage"] = usage_json(usage);
    else if (shape_.stream.include_usage)
      chunk["usage"] = nullptr;
    return sse(chunk);
  }

  std::string last_events(const Usage& usage) override {
    return last_chunks(shape_.stream.include_usage, head(), usage);
  }

  std::string error_events(int status, const std::string& message) override {
    return error_chunks(status, message);
  }

  std::string whole(std::vector<AnswerDelta> choices, const Usage& usage) override {
    json::object body = head();
    json::array out;
    for (size_t i = 0; i < choices.size(); ++i) {
      json::object one = choice(static_cast<int>(i), choices[i]);
      one["finish_reason"] = choices[i].finish;
      if (shape_.prompt_alternatives >= 0)
        one["prompt_logprobs"] = prompt_logprobs_json(shape_.model.tokenizer, prompt_tokens_[i / shape_.n]);
      out.push_back(std::move(one));
    }
    body["choices"] = std::move(out);
    body["usage"] = usage_json(usage);
    return json_text(body, JsonSpacing::kCompact);
  }

 private:
  json::object head() const {
    return {{"id", "cmpl-" + shape_.id},
            {"object", "text_completion"},
            {"created", shape_.created},
            {"model", shape_.model.name()},
            {"system_fingerprint", fingerprint(shape_.model.numerics)}};
  }

  // A choice with what `delta` adds to it; the echo of the prompt stands before the first.
  json::object choice(int index, const AnswerDelta& delta) {
    const size_t prompt = static_cast<size_t>(index) / shape_.n;
    const std::vector<int32_t>& ids = shape_.prompts[prompt];
    const bool first = !begun_[index];
    begun_[index] = true;
    std::string text;
    CompletionLogprobs& logprobs = logprobs_[index];
    if (first && shape_.echo) {
      text = replace_invalid_utf8(shape_.model.tokenizer.decode(ids));
      if (shape_.alternatives >= 0) logprobs.add_prompt(ids[0], prompt_tokens_[prompt]);
    }
    text += delta.content;
    for (const GeneratedToken& token : delta.tokens) logprobs.add(token);
    json::object out = {
        {"index", index},
        {"text", std::move(text)},
        {"logprobs", shape_.alternatives >= 0 ? json::value(logprobs.take()) : json::value(nullptr)}};
    if (delta.stop_string)
      out["stop_reason"] = *delta.stop_string;
    else if (delta.stop_id)
      out["stop_reason"] = *delta.stop_id;
    else
      out["stop_reason"] = nullptr;
    if (shape_.token_ids) {
      json::array tokens;
      for (const GeneratedToken& token : delta.tokens) tokens.push_back(token.id);
      out["token_ids"] = std::move(tokens);
      if (first) out["prompt_token_ids"] = json::value_from(ids);
    }
    return out;
  }

  Shape shape_;
  std::deque<CompletionLogprobs> logprobs_;  // by choice
  std::vector<bool> begun_;
  std::vector<std::vector<GeneratedToken>> prompt_tokens_;
};

// A string, strings, token ids, or lists of them.
std::vector<std::vector<int32_t>> read_prompts(BodyFields& body, const ServedModel& model) {
  constexpr std::string_view kExpected =
      "a string, a list of strings, a list of token ids, or a list of such lists";
  const json::value* prompt = body.find("prompt");
  if (!prompt) body.reject("prompt", kExpected);
  std::vector<std::vector<int32_t>> out;
  const auto add_text = [&](const json::string& text) {
    out.push_back(model.tokenizer.encode(std::string_view(text.data(), text.size())));
  };
  if (prompt->is_string()) {
    add_text(prompt->get_string());
  } else if (prompt->is_array() && !prompt->get_array().empty()) {
    const json::array& list = *body.array("prompt");
    if (list[0].is_number()) {
      out.push_back(body.token_ids("prompt", model.vocabulary()));
    } else if (list.size() > kMostPrompts) {
      fail(ErrorCode::kBadRequest, "prompt has {} entries; at most {} are taken in one request", list.size(),
           kMostPrompts);
    } else {
      for (const json::value& one : list) {
        if (one.is_string()) {
          add_text(one.get_string());
        } else if (one.is_array()) {
          const json::object holder = {{"prompt", one}};
          out.push_back(BodyFields(holder).token_ids("prompt", model.vocabulary()));
        } else {
          body.reject("prompt", kExpected);
        }
      }
    }
  } else {
    body.reject("prompt", kExpected);
  }
  for (const auto& ids : out)
    if (ids.empty()) fail(ErrorCode::kBadRequest, "prompt is empty; give at least one token");
  return out;
}

}  // namespace

Plan plan_text_completion(BodyFields& body, const ServedModel& model, const std::string& id) {
  check_model_name(body, model);
  Shape shape{.model = model, .id = id, .created = std::time(nullptr), .stream = read_stream_fields(body)};
  Request request;
  AnswerOptions answer;
  read_generation_fields(body, model, request, answer);
  shape.n = request.n;
  shape.echo = body.boolean("echo").value_or(false);
  shape.token_ids = body.boolean("return_token_ids").value_or(false);
  if (const auto n = body.integer("logprobs", 0, kMostAlternatives))
    shape.alternatives = static_cast<int>(*n);
  request.top_logprobs = std::max(shape.alternatives, 0);
  if (const auto n = body.integer("prompt_logprobs", 0, kMostAlternatives)) {
    if (shape.stream.stream)
      fail(ErrorCode::kBadRequest, "prompt_logprobs is given with \"stream\": true; ask for a whole answer");
    request.prompt_logprobs = shape.prompt_alternatives = static_cast<int>(*n);
  }
  if (shape.echo && shape.alternatives >= 0)
    request.prompt_logprobs = std::max(request.prompt_logprobs, shape.alternatives);
  const int64_t most = body.integer("max_tokens", 0, 1 << 30).value_or(16);
  if (most == 0 && !shape.echo && shape.prompt_alternatives < 0)
    fail(ErrorCode::kBadRequest,
         "max_tokens is 0, and neither echo nor prompt_logprobs asks about the prompt; raise it");
  shape.show_control = answer.show_control = !body.boolean("skip_special_tokens").value_or(true);
  if (body.boolean("return_tokens_as_token_ids").value_or(false)) shape.names = TokenNames::kIds;
  if (const auto best = body.integer("best_of", 1, kMostAnswers); best && *best != request.n)
    fail(ErrorCode::kBadRequest, "best_of is {}, but n is {}; answers are not ranked here, leave best_of out",
         *best, request.n);
  if (const auto suffix = body.string("suffix"); suffix && !suffix->empty())
    body.unsupported("suffix", "the model does not fill in the middle");
  body.unsupported("response_format", "use chat completions");
  body.ignore("add_special_tokens");  // none are added to a text prompt
  refuse_unsupported(body);

  shape.prompts = read_prompts(body, model);
  if (shape.prompts.size() * static_cast<size_t>(request.n) > kMostPrompts)
    fail(ErrorCode::kBadRequest,
         "prompt has {} entries and n is {}; at most {} answers are given to one request",
         shape.prompts.size(), request.n, kMostPrompts);
  Constraint constraint;
  {
    Grammar grammar;
    const int32_t root = grammar.new_rule();
    if (const auto content = read_structured_outputs(body, grammar, model)) {
      refuse_beside_constraint(body);
      grammar.add(root, {*content});
      constraint = make_constraint(std::move(grammar), model, request.stop_ids);
    }
  }
  request.logits.constraint = constraint.start;
  Plan plan;
  plan.fault = std::move(constraint.fault);
  plan.stream = shape.stream.stream;
  plan.discard_tokens = most == 0;
  for (const auto& prompt : shape.prompts) {
    Request one = request;
    one.prompt = prompt;
    one.max_tokens = std::max(answer_room(model, prompt.size(), most, "max_tokens"), 1);
    if (one.logits.min_tokens > one.max_tokens)
      fail(ErrorCode::kBadRequest, "min_tokens is {}, but at most {} tokens will be generated",
           one.logits.min_tokens, one.max_tokens);
    for (int branch = 0; branch < one.n; ++branch)
      plan.answers.emplace_back(model.tokenizer, nullptr, answer);
    plan.requests.push_back(std::move(one));
  }
  plan.envelope = std::make_unique<CompletionEnvelope>(std::move(shape));
  return plan;
}

}  // namespace perigee::serve
