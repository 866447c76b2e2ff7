#include "serve/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <random>

#include "serve/api_error.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

constexpr size_t kMostStops = 64, kLongestStop = 1024, kMostBias = 4096, kMostBadWords = 256;

uint64_t random_seed() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

std::vector<std::pair<int32_t, float>> read_bias(BodyFields& body, int64_t vocabulary) {
  std::vector<std::pair<int32_t, float>> out;
  const json::object* bias = body.object("logit_bias");
  if (!bias) return out;
  if (bias->size() > kMostBias)
    fail(ErrorCode::kBadRequest, "logit_bias has {} entries; at most {} are taken", bias->size(), kMostBias);
  for (const auto& entry : *bias) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocabulary)
      fail(ErrorCode::kBadRequest, "logit_bias has the key \"{}\"; expected a token id from 0 to {}",
           key.substr(0, 40), vocabulary - 1);
    const double value = entry.value().is_number() ? entry.value().to_number<double>() : 1000;
    if (!(value >= -100 && value <= 100))
      fail(ErrorCode::kBadRequest, "logit_bias[{}] is not a number from -100 to 100", id);
    out.emplace_back(id, static_cast<float>(value));
  }
  return out;
}

// As vLLM: a word is banned as it stands and with a space before it.
std::vector<std::vector<int32_t>> read_bad_words(BodyFields& body, const Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> out;
  for (const std::string& word : body.strings("bad_words", kMostBadWords)) {
    if (word.empty() || word.size() > kLongestStop)
      fail(ErrorCode::kBadRequest, "bad_words holds a word of {} bytes; expected 1 to {}", word.size(),
           kLongestStop);
    for (const std::string& form : {word, " " + word}) {
      std::vector<int32_t> ids = tokenizer.encode(form);
      if (std::find(out.begin(), out.end(), ids) == out.end()) out.push_back(std::move(ids));
    }
  }
  return out;
}

}  // namespace

void read_generation_fields(BodyFields& body, const ServedModel& model, Request& request,
                            AnswerOptions& answer) {
  const int64_t vocabulary = model.vocabulary();
  SampleParams& s = request.sampling;
  s = model.defaults;
  if (const auto x = body.number("temperature", 0, 100)) s.temperature = static_cast<float>(*x);
  if (const auto x = body.number("top_p", 0, 1)) s.top_p = static_cast<float>(*x);
  if (const auto x = body.integer("top_k", -1, 1 << 30)) s.top_k = static_cast<int>(std::max<int64_t>(*x, 0));
  const auto seed =
      body.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  s.seed = seed ? static_cast<uint64_t>(*seed) : model.seed ? *model.seed : random_seed();

  LogitsParams& l = request.logits;
  const auto real = [&](std::string_view key, double low, double high, float& into) {
    if (const auto x = body.number(key, low, high)) into = static_cast<float>(*x);
  };
  real("frequency_penalty", -2, 2, l.frequency_penalty);
  real("presence_penalty", -2, 2, l.presence_penalty);
  real("repetition_penalty", 0.01, 100, l.repetition_penalty);
  real("min_p", 0, 1, l.min_p);
  l.logit_bias = read_bias(body, vocabulary);
  if (body.has("allowed_token_ids")) {
    l.allowed_ids = body.token_ids("allowed_token_ids", vocabulary);
    if (l.allowed_ids.empty()) body.reject("allowed_token_ids", "at least one token id");
  }
  l.bad_words = read_bad_words(body, model.tokenizer);
  l.min_tokens = static_cast<int>(body.integer("min_tokens", 0, 1 << 30).value_or(0));

  answer.stops = body.strings("stop", kMostStops);
  for (const std::string& stop : answer.stops)
    if (stop.empty() || stop.size() > kLongestStop)
      fail(ErrorCode::kBadRequest, "stop holds a string of {} bytes; expected 1 to {}", stop.size(),
           kLongestStop);
  answer.stop_ids = body.token_ids("stop_token_ids", vocabulary, kMostStops);
  answer.include_stop = body.boolean("include_stop_str_in_output").value_or(false);
  answer.min_tokens = l.min_tokens;

  if (!body.boolean("ignore_eos").value_or(false)) request.stop_ids = model.stop_ids;
  request.stop_ids.insert(request.stop_ids.end(), answer.stop_ids.begin(), answer.stop_ids.end());
  request.n = static_cast<int>(body.integer("n", 1, kMostAnswers).value_or(1));
  request.processed_logprobs = model.processed_logprobs;
  request.priority = static_cast<int>(body.integer("priority", -(1 << 30), 1 << 30).value_or(0));
  request.salt = body.string("cache_salt", 256).value_or("");
}

StreamFields read_stream_fields(BodyFields& body) {
  StreamFields out{.stream = body.boolean("stream").value_or(false)};
  if (const json::object* object = body.object("stream_options")) {
    if (!out.stream)
      fail(ErrorCode::kBadRequest, "stream_options is given without \"stream\": true; leave it out");
    BodyFields options(*object, "stream_options.");
    out.include_usage = options.boolean("include_usage").value_or(false);
    out.continuous_usage = out.include_usage && options.boolean("continuous_usage_stats").value_or(false);
  }
  return out;
}

void check_model_name(BodyFields& body, const ServedModel& model) {
  const auto name = body.string("model", 1024);
  if (!name || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return;
  throw NotFound(fmt::format("the model \"{}\" is not served here; ask for \"{}\"", *name, model.name()));
}

int answer_room(const ServedModel& model, size_t prompt_tokens, std::optional<int64_t> asked,
                std::string_view field) {
  const int64_t prompt = static_cast<int64_t>(prompt_tokens), limit = model.max_model_len;
  if (prompt + 1 > limit)
    fail(ErrorCode::kBadRequest,
         "the prompt has {} tokens, but the model's context holds {} with the answer; shorten it", prompt,
         limit);
  if (!asked) return static_cast<int>(std::min<int64_t>(limit - prompt, 1 << 30));
  if (prompt + *asked > limit)
    fail(ErrorCode::kBadRequest,
         "{} is {} and the prompt has {} tokens, {} together, but the model's context holds {}; lower {} to "
         "{} or "
         "shorten the prompt",
         field, *asked, prompt, prompt + *asked, limit, field, limit - prompt);
  return static_cast<int>(*asked);
}

void refuse_unsupported(BodyFields& body) {
  body.unsupported("use_beam_search", "ask for n answers");
  body.unsupported("kv_transfer_params", "prefill and decode run in one engine here");
  body.unsupported("truncate_prompt_tokens", "shorten the prompt yourself");
  body.unsupported("prompt_embeds", "send text or token ids");
  // Of no consequence here.
  for (const char* key :
       {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "verbosity", "prediction", "spaces_between_special_tokens", "request_id"})
    body.ignore(key);
}

}  // namespace perigee::serve
