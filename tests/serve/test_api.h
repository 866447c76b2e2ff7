// The API over a scripted engine, on a free port.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <thread>

#include "client.h"
#include "scripted_engine.h"
#include "serve/api.h"
#include "serve/api_error.h"

namespace perigee::serve {

inline ServedModel test_model() {
  const Tokenizer tokenizer = Tokenizer::load("models/tiny-k31");
  ServedModel model{.names = {"tiny", "other-name"}, .root = "models/tiny-k31", .tokenizer = tokenizer};
  model.format = make_chat_format(tokenizer);
  model.token_tree = std::make_shared<TokenTree>(tokenizer.vocabulary());
  model.stop_ids = model.format->stop_ids();
  model.max_model_len = 4096;
  model.created = 1;
  model.numerics = {.fields = {{"architecture", "scripted"}}, .digest = "0123456789abcdef"};
  model.version = "test";
  return model;
}

// Text and control tokens of an answer, the end of the message included.
inline std::vector<int32_t> answer_ids(const ServedModel& model, const std::vector<std::string>& parts) {
  std::vector<Segment> segments;
  for (const std::string& part : parts)
    segments.push_back({part, model.tokenizer.vocabulary().has_control(part)});
  segments.push_back({"<|end_of_msg|>", true});
  return model.tokenizer.encode(segments);
}

class TestApi {
 public:
  explicit TestApi(ScriptedEngine::Script script, ApiOptions options = {}, int burst = 1,
                   std::chrono::microseconds delay = {}, ServedModel model = test_model(), int port = 0)
      : engine(std::move(script), burst, delay), api(std::move(model), engine, quiet(std::move(options))) {
    HttpOptions http;
    http.port = port;
    http.limits.body_bytes = 1 << 20;
    http.admit = [this](const HttpRequest& r) { return api.admit(r); };
    http.handler = [this](auto request, auto reply) { api.handle(std::move(request), std::move(reply)); };
    http.refusal = [](int status, std::string_view message) { return error_body(status, message); };
    http.common_headers = [this](const HttpRequest& r) { return api.common_headers(r); };
    http.log = [this](const HttpExchange& e) { api.log(e); };
    server = std::make_unique<HttpServer>(std::move(http));
    api.connections = [this] { return server->connections(); };
    thread_ = std::thread([this] { server->run(); });
  }
  ~TestApi() {
    server->stop();
    thread_.join();
    engine.stop();
    api.stop();
  }
  int port() const { return server->port(); }

  HttpResponse post(const std::string& path, const std::string& body, const std::string& headers = "") {
    Client client(port());
    client.post(path, body, headers);
    return client.read();
  }
  HttpResponse get(const std::string& path, const std::string& headers = "") {
    Client client(port());
    client.get(path, headers);
    return client.read();
  }

  ScriptedEngine engine;
  Api api;
  std::unique_ptr<HttpServer> server;

 private:
  static ApiOptions quiet(ApiOptions options) {
    options.access_log = false;
    return options;
  }
  std::thread thread_;
};

}  // namespace perigee::serve
