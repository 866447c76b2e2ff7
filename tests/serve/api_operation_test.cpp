// The API beside its answers: errors, clients that leave, overload, keys, admin routes, origins, metrics.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <set>

#include "api_answers.h"

namespace perigee::serve {
namespace {

namespace json = boost::json;

TEST(Api, RefusalsAndErrorsOfTheEngine) {
  TestApi api([](const Request& r, int) -> ScriptedEngine::Answer {
    if (r.max_tokens == 1) fail(ErrorCode::kBadRequest, "the prompt is odd");
    if (r.max_tokens == 2) fail(ErrorCode::kBusy, "too many wait");
    return {answer_ids(test_model(), kThought), FinishReason::kError, "the step failed"};
  });
  EXPECT_EQ(api.post("/v1/chat/completions", chat(R"(,"max_tokens":1)")).status, 400);
  const HttpResponse busy = api.post("/v1/chat/completions", chat(R"(,"max_tokens":2)"));
  EXPECT_EQ(busy.status, 429);
  EXPECT_EQ(busy.headers.at("retry-after"), "1");
  EXPECT_EQ(object_of(busy).at("error").at("type"), "rate_limit_error");
  const HttpResponse failed = api.post("/v1/chat/completions", chat());
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(message_of(failed), "the step failed");
  const auto events = events_of(api.post("/v1/chat/completions", chat(R"(,"stream":true)")));
  EXPECT_EQ(events.back().at("error").at("message"), "the step failed");
}

TEST(Api, AClientThatLeavesFreesTheEngine) {
  TestApi api([](const Request&, int) { return ScriptedEngine::Answer{std::vector<int32_t>(1000000, 65)}; },
              {}, 1, std::chrono::microseconds(500));
  for (const bool stream : {false, true}) {
    Client client(api.port());
    client.post("/v1/completions", std::string(R"({"prompt":"x","max_tokens":4000,"n":2,"stream":)") +
                                       (stream ? "true}" : "false}"));
    for (int i = 0; i < 1000 && api.engine.live() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_GT(api.engine.live(), 0);
    if (stream) client.read_head();
    client.close();
    for (int i = 0; i < 1000 && api.engine.live() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(api.engine.live(), 0) << stream;
    for (int i = 0; i < 1000 && api.api.in_flight() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(api.api.in_flight(), 0);
  }
}

TEST(Api, OverloadIsRefusedAndDrainingToo) {
  ApiOptions options;
  options.max_requests = 1;
  TestApi api([](const Request&, int) { return ScriptedEngine::Answer{std::vector<int32_t>(1000000, 65)}; },
              options, 1, std::chrono::microseconds(500));
  Client first(api.port());
  first.post("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":4000})");
  EXPECT_EQ(first.read_head().status, 200);
  const HttpResponse r = api.post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(r.headers.at("retry-after"), "1");
  EXPECT_EQ(api.get("/ready").status, 200);
  api.api.drain();
  EXPECT_EQ(api.get("/ready").status, 503);
  EXPECT_EQ(api.get("/health").status, 200);
  EXPECT_EQ(api.post("/v1/completions", R"({"prompt":"x"})").status, 503);
  api.api.abort_all("the server stops");
  std::string rest;
  while (const auto chunk = first.read_chunk()) {
    if (chunk->empty()) break;
    rest += *chunk;
  }
  EXPECT_NE(rest.find("the server stops"), std::string::npos);
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n"));
}

TEST(Api, KeysOpenTheRoutes) {
  ApiOptions options;
  options.api_keys = {"secret", "second"};
  TestApi api(say({"x"}), options);
  for (const char* path : {"/health", "/ready", "/version", "/metrics", "/", "/openapi.json"})
    EXPECT_EQ(api.get(path).status, 200) << path;
  EXPECT_EQ(api.get("/v1/models").status, 401);
  EXPECT_EQ(object_of(api.get("/v1/models")).at("error").at("code"), "invalid_api_key");
  for (const char* header : {"Authorization: Bearer wrong\r\n", "Authorization: secret\r\n",
                             "Authorization: Bearer \r\n", "Authorization: Basic secret\r\n"})
    EXPECT_EQ(api.get("/v1/models", header).status, 401) << header;
  for (const char* header : {"Authorization: Bearer secret\r\n", "authorization: bearer second\r\n"})
    EXPECT_EQ(api.get("/v1/models", header).status, 200) << header;
  EXPECT_EQ(api.post("/pause", "").status, 401);
  EXPECT_EQ(api.post("/resume", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST(Api, AdminRoutesAreForThisMachineAndNotForItsBrowser) {
  TestApi api(say({"x"}));
  EXPECT_EQ(api.post("/reset_prefix_cache", "").status, 200);
  EXPECT_EQ(api.post("/reset_prefix_cache", "", "Origin: http://evil.example\r\n").status, 403);
  EXPECT_EQ(api.post("/pause", "").status, 200);
  std::promise<HttpResponse> answered;
  std::thread asker([&] { answered.set_value(api.post("/v1/completions", R"({"prompt":"x"})")); });
  for (int i = 0; i < 1000 && api.engine.seen().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  auto future = answered.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(api.post("/resume", "").status, 200);
  EXPECT_EQ(future.get().status, 200);
  asker.join();
}

TEST(Api, OriginsOfBrowsers) {
  ApiOptions options;
  options.allowed_origins = {"https://app.example"};
  TestApi api(say({"x"}), options);
  Client client(api.port());
  client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n\r\n");
  const HttpResponse r = client.read();
  EXPECT_EQ(r.status, 204);
  EXPECT_EQ(r.headers.at("access-control-allow-origin"), "https://app.example");
  EXPECT_NE(r.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_EQ(api.get("/health", "Origin: https://app.example\r\n").headers.at("access-control-allow-origin"),
            "https://app.example");
  EXPECT_EQ(
      api.get("/health", "Origin: https://evil.example\r\n").headers.count("access-control-allow-origin"),
      0u);
  TestApi closed(say({"x"}));
  EXPECT_EQ(
      closed.get("/health", "Origin: https://app.example\r\n").headers.count("access-control-allow-origin"),
      0u);
}

TEST(Api, MetricsAreWellFormedAndCount) {
  ApiOptions options;
  options.vllm_metrics = true;
  TestApi api(say({"abc"}), options);
  for (int i = 0; i < 3; ++i) api.post("/v1/completions", R"({"prompt":"x","max_tokens":9})");
  const std::string text = api.get("/metrics").body;
  EXPECT_NE(
      text.find(
          "perigee:request_success_total{engine=\"0\",model_name=\"tiny\",finished_reason=\"stop\"} 3\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("\nvllm:num_requests_running{"), std::string::npos);
  EXPECT_NE(text.find("owner=\"prefixes\"} 4\n"), std::string::npos);
  EXPECT_NE(text.find("perigee:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"tiny\"} 3\n"),
            std::string::npos);
  EXPECT_NE(text.find("le=\"+Inf\"} 3\n"), std::string::npos);
  std::set<std::string> types;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(types.insert(line).second) << line;
    }
    at = end + 1;
  }
}

TEST(Api, ModelsAndVersion) {
  TestApi api(say({"x"}));
  const json::object models = object_of(api.get("/v1/models"));
  EXPECT_EQ(models.at("data").as_array().size(), 2u);
  EXPECT_EQ(models.at("data").as_array()[0].at("id"), "tiny");
  EXPECT_EQ(models.at("data").as_array()[0].at("max_model_len"), 4096);
  EXPECT_EQ(object_of(api.get("/v1/models/tiny")).at("id"), "tiny");
  EXPECT_EQ(api.get("/v1/models/absent").status, 404);
  EXPECT_EQ(object_of(api.get("/version")).at("numerics").at("digest"), "0123456789abcdef");
}

}  // namespace
}  // namespace perigee::serve
