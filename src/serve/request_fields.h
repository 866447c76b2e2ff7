// The parameters that chat and text completions share, from a request's JSON to what the engine and
// AnswerText take. Names and meanings are OpenAI's, and vLLM's for the ones beyond.
#pragma once

#include <string>

#include "engine/request.h"
#include "serve/answer_text.h"
#include "serve/body_fields.h"
#include "serve/served_model.h"

namespace perigee::serve {

constexpr int kMostAnswers = 128;
constexpr int kMostAlternatives = 20;

struct StreamFields {
  bool stream = false, include_usage = false, continuous_usage = false;
};

// Sampling, penalties, bias, bans, stops, n, seed, priority and salt; not max_tokens.
void read_generation_fields(BodyFields& body, const ServedModel& model, Request& request,
                            AnswerOptions& answer);
StreamFields read_stream_fields(BodyFields& body);

// Checks the model's name: NotFound for one that is not served. Absent means the one there is.
void check_model_name(BodyFields& body, const ServedModel& model);

// Tokens the answer may have: `asked`, or what the context leaves when absent.
int answer_room(const ServedModel& model, size_t prompt_tokens, std::optional<int64_t> asked,
                std::string_view field);

// Names that are refused, or taken without effect, by every completion.
void refuse_unsupported(BodyFields& body);

}  // namespace perigee::serve
