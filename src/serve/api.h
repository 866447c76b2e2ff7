// The routes: what each path does, who may use it, and what happens when the server is full or about to stop.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "serve/body_fields.h"
#include "serve/exchange.h"
#include "serve/http.h"
#include "serve/served_model.h"

namespace perigee::serve {

struct ApiOptions {
  std::vector<std::string> api_keys;         // any of them opens the API; none: it is open
  std::vector<std::string> allowed_origins;  // CORS: "*", or scheme://host[:port]; empty: none
  int64_t max_requests = 4096;               // under way at once; more are answered 429
  bool vllm_metrics = false;
  bool access_log = true;
  int threads = 2;  // that read, check and tokenise requests
};

class Api {
 public:
  Api(ServedModel model, EnginePort& engine, ApiOptions options);
  ~Api();

  // For HttpOptions.
  int admit(const HttpRequest& request) const;
  void handle(std::shared_ptr<HttpRequest> request, std::shared_ptr<HttpReply> reply);
  Headers common_headers(const HttpRequest& request) const;
  void log(const HttpExchange& exchange) const;

  // From now on /ready is 503 and new work is refused.
  void drain() { draining_ = true; }
  // Requests taken in and not yet answered.
  int64_t in_flight() const { return metrics_.in_flight(); }
  // Ends them all with an error.
  void abort_all(const std::string& why);
  // After the engine has stopped: its events go to threads that end here.
  void stop();

  std::function<size_t()> connections = [] { return size_t{0}; };

 private:
  using Answer = std::function<void(const HttpRequest&, HttpReply&)>;
  using Planner = std::function<Plan(BodyFields&, const ServedModel&, const std::string& id)>;
  enum class Access { kOpen, kKey, kAdmin };
  struct Route {
    std::string method;
    Access access;
    std::function<void(std::shared_ptr<HttpRequest>, std::shared_ptr<HttpReply>)> handle;
  };

  void add(const std::string& path, const std::string& method, Access access, Answer answer);
  // Runs on the request threads, not on the I/O thread.
  void add_slow(const std::string& path, const std::string& method, Access access, Answer answer);
  void add_completion(const std::string& path, Planner planner);
  void add_routes();
  void warn(const std::string& id, const std::string& warning) const;
  bool allowed(const Route& route, const HttpRequest& request) const;
  bool has_key(const HttpRequest& request) const;
  void complete(const Planner& planner, std::shared_ptr<HttpRequest> request,
                std::shared_ptr<HttpReply> reply);

  ServedModel model_;
  EnginePort& engine_;
  ApiOptions options_;
  Metrics metrics_;
  std::multimap<std::string, Route> routes_;
  std::atomic<bool> draining_ = false;
  std::mutex exchanges_mutex_;
  std::vector<std::weak_ptr<Exchange>> exchanges_;
  WorkerPool workers_, delivery_{1};
};

// Answers with a JSON value.
void send_json(HttpReply& reply, int status, const boost::json::value& value, Headers headers = {});
void send_error(HttpReply& reply, int status, std::string_view message, Headers headers = {});

}  // namespace perigee::serve
