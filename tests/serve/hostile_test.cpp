// Mutated request bodies through everything between the socket and the engine: parsing, checking, rendering,
// tokenising. Whatever comes in, it becomes a plan or an Error. PERIGEE_FUZZ_RUNS sets how many
// (scripts/run-tests-all).
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "serve/chat_completion.h"
#include "serve/responses.h"
#include "serve/text_completion.h"
#include "serve/tokenize.h"
#include "test_api.h"

namespace perigee::serve {
namespace {

const char* const kSeeds[] = {
    R"({"model":"tiny","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}],"max_tokens":3,"temperature":0.5,"stop":["x"],"logit_bias":{"5":1.5},"stream":true,"stream_options":{"include_usage":true},"seed":7})",
    R"({"messages":[{"role":"user","content":"w"},{"role":"assistant","reasoning_content":"r","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\": [1, 2.5e3, null]}"}}]},{"role":"tool","tool_call_id":"c","content":"ok"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"array"}}}}}],"tool_choice":"auto","response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"}}},"chat_template_kwargs":{"thinking":false}})",
    R"({"prompt":["one","two"],"n":2,"echo":true,"logprobs":2,"bad_words":["no"],"allowed_token_ids":[1,2,3],"stop_token_ids":[9],"best_of":2})",
    R"({"prompt":[[1,2],[3]],"max_tokens":0,"prompt_logprobs":1})",
    R"({"input":[{"role":"user","content":"w"},{"type":"reasoning","content":[{"type":"reasoning_text","text":"t"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"ok"}],"tools":[{"type":"function","name":"f","parameters":{}}],"reasoning":{"effort":"low"},"text":{"format":{"type":"text"}},"max_output_tokens":5})",
    R"({"tokens":[1,2,3],"messages":[{"role":"user","content":"\ud83d\ude00 <|end_of_msg|>"}]})",
};
const char* const kPieces[] = {"null",    "true",      "-1",       "1e999",   "18446744073709551616",
                               "\"\"",    "[]",        "{}",       "[[[[",    "\\u0000",
                               "\\ud800", "\xff",      "\xe2\x82", "<|sep|>", ",",
                               "\"n\":",  "\"role\":", "0.1e-400"};

std::string mutated(std::mt19937_64& random) {
  std::string text = kSeeds[random() % std::size(kSeeds)];
  for (uint64_t i = random() % 6; i > 0 && !text.empty(); --i) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, random() % 12);
        break;
      case 2:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 3:
        text.insert(at, text.substr(random() % text.size(), random() % 40));
        break;
      default: {  // a whole value exchanged: what is left stays JSON
        const size_t colon = text.find(':', at);
        const size_t end = text.find_first_of(",}]", colon == std::string::npos ? at : colon);
        if (colon != std::string::npos && end != std::string::npos)
          text.replace(colon + 1, end - colon - 1, kPieces[random() % std::size(kPieces)]);
      }
    }
  }
  return text;
}

TEST(Hostile, AnyBodyBecomesAPlanOrAnError) {
  const char* asked = std::getenv("PERIGEE_FUZZ_RUNS");
  const int64_t runs = asked ? std::atoll(asked) : 20000;
  const ServedModel model = test_model();
  std::mt19937_64 random(20261130);
  int64_t plans = 0, errors = 0;
  for (int64_t run = 0; run < runs; ++run) {
    const std::string text = mutated(random);
    const auto attempt = [&](auto task) {
      try {
        task();
        ++plans;
      } catch (const Error& error) {
        ++errors;
        ASSERT_TRUE(error.code() == ErrorCode::kBadRequest || error.code() == ErrorCode::kUnsupported)
            << text << "\n"
            << error.what();
        ASSERT_FALSE(std::string(error.what()).empty());
      }
    };
    using Planner = Plan (*)(BodyFields&, const ServedModel&, const std::string&);
    for (Planner plan :
         {Planner(plan_chat_completion), Planner(plan_text_completion), Planner(plan_response)})
      attempt([&] {
        const boost::json::object object = parse_body(text);
        BodyFields body(object);
        const Plan made = plan(body, model, "id");
        int answers = 0;
        for (const Request& request : made.requests) {
          answers += request.n;
          ASSERT_FALSE(request.prompt.empty());
          ASSERT_LE(static_cast<int64_t>(request.prompt.size()) + request.max_tokens,
                    model.max_model_len + 1);
          for (int32_t id : request.prompt) ASSERT_TRUE(id >= 0 && id < model.vocabulary());
        }
        ASSERT_EQ(static_cast<size_t>(answers), made.answers.size());
      });
    attempt([&] { tokenize(text, model); });
    attempt([&] { detokenize(text, model); });
    if (HasFatalFailure()) return;
  }
  // The mutations are neither all harmless nor all fatal.
  EXPECT_GT(plans, runs / 100);
  EXPECT_GT(errors, runs);
}

}  // namespace
}  // namespace perigee::serve
