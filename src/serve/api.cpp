#include "serve/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <ctime>

#include "serve/api_error.h"
#include "serve/chat_completion.h"
#include "serve/http_text.h"
#include "serve/page.h"
#include "serve/responses.h"
#include "serve/text_completion.h"
#include "serve/tokenize.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace json = boost::json;

void send_json(HttpReply& reply, int status, const json::value& value, Headers headers) {
  headers.emplace_back("Content-Type", "application/json");
  reply.send(status, std::move(headers), json_text(value, JsonSpacing::kCompact));
}

void send_error(HttpReply& reply, int status, std::string_view message, Headers headers) {
  headers.emplace_back("Content-Type", "application/json");
  reply.send(status, std::move(headers), error_body(status, message));
}

namespace {

// Runs `task`; an Error becomes the reply.
template <typename Task, typename Refuse>
void guarded(Task task, Refuse refuse) {
  try {
    task();
  } catch (const Error& error) {
    refuse(http_status(error), std::string(error.what()));
  } catch (const std::exception& error) {
    refuse(500, std::string(error.what()));
  }
}

json::object model_card(const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "perigee"},
          {"root", model.root},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len},
          {"permission", json::array()}};
}

// openapi.json with what is the model's.
std::string description(const ServedModel& model) {
  json::value out = json::parse(openapi());
  out.at("components").at("schemas").at("TokenId").as_object()["maximum"] = model.vocabulary() - 1;
  return json_text(out, JsonSpacing::kCompact);
}

}  // namespace

Api::Api(ServedModel model, EnginePort& engine, ApiOptions options)
    : model_(std::move(model)), engine_(engine), options_(std::move(options)), workers_(options_.threads) {
  add_routes();
}

Api::~Api() { stop(); }

void Api::stop() {
  workers_.stop();
  delivery_.stop();
}

void Api::add(const std::string& path, const std::string& method, Access access, Answer answer) {
  routes_.emplace(
      path, Route{method, access, [answer = std::move(answer)](auto request, auto reply) {
                    guarded([&] { answer(*request, *reply); },
                            [&](int status, const std::string& why) { send_error(*reply, status, why); });
                  }});
}

void Api::add_slow(const std::string& path, const std::string& method, Access access, Answer answer) {
  routes_.emplace(
      path, Route{method, access, [this, answer = std::move(answer)](auto request, auto reply) {
                    workers_.post([answer, request, reply] {
                      guarded([&] { answer(*request, *reply); },
                              [&](int status, const std::string& why) { send_error(*reply, status, why); });
                    });
                  }});
}

void Api::add_completion(const std::string& path, Planner planner) {
  routes_.emplace(path,
                  Route{"POST", Access::kKey, [this, planner = std::move(planner)](auto request, auto reply) {
                          complete(planner, std::move(request), std::move(reply));
                        }});
}

void Api::add_routes() {
  add_completion("/v1/chat/completions", plan_chat_completion);
  add_completion("/v1/completions", plan_text_completion);
  add_completion("/v1/responses", plan_response);
  add_slow("/tokenize", "POST", Access::kKey, [this](const HttpRequest& request, HttpReply& reply) {
    send_json(reply, 200, tokenize(request.body, model_));
  });
  add_slow("/detokenize", "POST", Access::kKey, [this](const HttpRequest& request, HttpReply& reply) {
    send_json(reply, 200, detokenize(request.body, model_));
  });
  add("/v1/models", "GET", Access::kKey, [this](const HttpRequest&, HttpReply& reply) {
    json::array data;
    for (const std::string& name : model_.names) data.push_back(model_card(model_, name));
    send_json(reply, 200, {{"object", "list"}, {"data", std::move(data)}});
  });
  for (const std::string& name : model_.names)
    add("/v1/models/" + name, "GET", Access::kKey, [this, name](const HttpRequest&, HttpReply& reply) {
      send_json(reply, 200, model_card(model_, name));
    });
  for (const char* path : {"/health", "/ping"})
    add(path, "GET", Access::kOpen,
        [](const HttpRequest&, HttpReply& reply) { send_json(reply, 200, {{"status", "ok"}}); });
  add("/ready", "GET", Access::kOpen, [this](const HttpRequest&, HttpReply& reply) {
    if (draining_) return send_error(reply, 503, "the server is about to stop", {{"Retry-After", "5"}});
    send_json(reply, 200, {{"status", "ready"}});
  });
  add("/version", "GET", Access::kOpen, [this](const HttpRequest&, HttpReply& reply) {
    json::object fields;
    for (const auto& [key, value] : model_.numerics.fields) fields[key] = value;
    send_json(reply, 200,
              {{"version", model_.version},
               {"numerics", {{"digest", model_.numerics.digest}, {"fields", std::move(fields)}}}});
  });
  add("/metrics", "GET", Access::kOpen, [this](const HttpRequest&, HttpReply& reply) {
    reply.send(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
               metrics_.text(engine_.stats(), engine_.cache_rows(), connections(), model_.name(),
                             options_.vllm_metrics));
  });
  add("/load", "GET", Access::kKey, [this](const HttpRequest&, HttpReply& reply) {
    const Engine::Stats s = engine_.stats();
    send_json(reply, 200, {{"server_load", s.running + s.waiting}});
  });
  add("/", "GET", Access::kOpen, [](const HttpRequest&, HttpReply& reply) {
    // Nothing on the page comes from elsewhere, and nothing of it goes elsewhere.
    reply.send(
        200,
        {{"Content-Type", "text/html; charset=utf-8"},
         {"Content-Security-Policy",
          "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
          "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"},
         {"X-Content-Type-Options", "nosniff"}},
        std::string(page()));
  });
  // What browsers ask for by themselves.
  add("/favicon.ico", "GET", Access::kOpen,
      [](const HttpRequest&, HttpReply& reply) { reply.send(204, {}, ""); });
  add("/openapi.json", "GET", Access::kOpen,
      [description = description(model_)](const HttpRequest&, HttpReply& reply) {
        reply.send(200, {{"Content-Type", "application/json"}}, description);
      });
  for (const char* path : {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
    add(path, "POST", Access::kKey, [](const HttpRequest&, HttpReply& reply) {
      send_error(reply, 501, "LoRA adapters are not implemented in this build; serve merged weights");
    });
  for (const char* path :
       {"/v1/embeddings", "/v1/audio/transcriptions", "/v1/rerank", "/v1/score", "/v1/messages"})
    add(path, "POST", Access::kKey, [path](const HttpRequest&, HttpReply& reply) {
      send_error(reply, 501, fmt::format("{} is not implemented; /openapi.json lists what is", path));
    });
  add_slow("/reset_prefix_cache", "POST", Access::kAdmin, [this](const HttpRequest&, HttpReply& reply) {
    if (!engine_.reset_prefix_cache())
      return send_error(reply, 503, "requests are running; pause new ones and try again",
                        {{"Retry-After", "1"}});
    send_json(reply, 200, {{"status", "ok"}});
  });
  add("/pause", "POST", Access::kAdmin, [this](const HttpRequest&, HttpReply& reply) {
    engine_.pause();
    send_json(reply, 200, {{"status", "paused"}});
  });
  add("/resume", "POST", Access::kAdmin, [this](const HttpRequest&, HttpReply& reply) {
    engine_.resume();
    send_json(reply, 200, {{"status", "running"}});
  });
  add("/update_weights", "POST", Access::kAdmin, [](const HttpRequest&, HttpReply& reply) {
    send_error(reply, 501,
               "weights cannot be updated in a running server yet; start it again with the new folder");
  });
}

bool Api::has_key(const HttpRequest& request) const {
  std::string_view given = request.header("authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (given.size() < kBearer.size() ||
      !std::equal(kBearer.begin(), kBearer.end(), given.begin(),
                  [](char a, char b) { return a == b || (a | 0x20) == (b | 0x20); }))
    return false;
  given.remove_prefix(kBearer.size());
  bool found = false;
  for (const std::string& key : options_.api_keys) found |= equal_in_constant_time(given, key);
  return found;
}

bool Api::allowed(const Route& route, const HttpRequest& request) const {
  if (route.access == Access::kOpen) return true;
  if (!options_.api_keys.empty()) return has_key(request);
  if (route.access == Access::kKey) return true;
  // Without keys the routes that change the server are for this machine, and not for a page in its browser.
  return request.loopback && request.header("origin").empty();
}

int Api::admit(const HttpRequest& request) const {
  if (request.method == "OPTIONS") return 0;
  const auto [first, last] = routes_.equal_range(request.path);
  for (auto route = first; route != last; ++route)
    if (!allowed(route->second, request)) return options_.api_keys.empty() ? 403 : 401;
  return 0;
}

Headers Api::common_headers(const HttpRequest& request) const {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || options_.allowed_origins.empty()) return {};
  const auto& allowed = options_.allowed_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return {};
  return {{"Access-Control-Allow-Origin", any ? "*" : std::string(origin)},
          {"Vary", "Origin"},
          {"Access-Control-Expose-Headers", "X-Request-Id, X-Perigee-Warning"}};
}

void Api::handle(std::shared_ptr<HttpRequest> request, std::shared_ptr<HttpReply> reply) {
  const auto [first, last] = routes_.equal_range(request->path);
  std::string methods;
  for (auto route = first; route != last; ++route)
    methods += route->second.method + (route->second.method == "GET" ? ", HEAD, " : ", ");
  methods += "OPTIONS";
  if (request->method == "OPTIONS") {
    Headers headers = {{"Allow", methods}};
    if (!common_headers(*request).empty()) {
      headers.emplace_back("Access-Control-Allow-Methods", methods);
      headers.emplace_back("Access-Control-Allow-Headers",
                           "Authorization, Content-Type, X-Request-Id, X-Stainless-*");
      headers.emplace_back("Access-Control-Max-Age", "600");
    }
    return reply->send(204, std::move(headers), "");
  }
  if (first == last)
    return send_error(*reply, 404,
                      fmt::format("no route {}; /openapi.json lists those there are", request->path));
  const std::string method = request->method == "HEAD" ? "GET" : request->method;
  for (auto route = first; route != last; ++route)
    if (route->second.method == method) return route->second.handle(std::move(request), std::move(reply));
  send_error(*reply, 405, fmt::format("{} does not take {}; use {}", request->path, request->method, methods),
             {{"Allow", methods}});
}

void Api::complete(const Planner& planner, std::shared_ptr<HttpRequest> request,
                   std::shared_ptr<HttpReply> reply) {
  if (draining_)
    return send_error(*reply, 503, "the server is about to stop; ask another one", {{"Retry-After", "5"}});
  if (metrics_.in_flight() >= options_.max_requests) {
    ++metrics_.rejections;
    return send_error(
        *reply, 429,
        fmt::format("the server has {} requests under way; try again later", options_.max_requests),
        {{"Retry-After", "1"}});
  }
  const auto exchange =
      std::make_shared<Exchange>(ExchangeServices{engine_, delivery_, metrics_}, std::move(reply));
  exchange->watch();
  {
    const std::lock_guard lock(exchanges_mutex_);
    if (exchanges_.size() > 2 * static_cast<size_t>(std::max<int64_t>(metrics_.in_flight(), 64)))
      std::erase_if(exchanges_, [](const auto& e) { return e.expired(); });
    exchanges_.push_back(exchange);
  }
  workers_.post([this, planner, request = std::move(request), exchange] {
    if (exchange->gone()) return;
    guarded(
        [&] {
          const json::object object = parse_body(request->body);
          request->body = {};
          BodyFields body(object);
          auto plan = std::make_shared<Plan>(planner(body, model_, request->id));
          if (const auto unknown = body.unknown(); !unknown.empty())
            plan->warnings.push_back("unknown parameters ignored: " + listed(unknown));
          if (!plan->warnings.empty()) {
            const std::string all = fmt::format("{}", fmt::join(plan->warnings, "; "));
            warn(request->id, all);
            plan->headers.emplace_back("X-Perigee-Warning", all);
          }
          delivery_.post([exchange, plan] { exchange->start(std::move(*plan)); });
        },
        [&](int status, const std::string& why) {
          delivery_.post([exchange, status, why] { exchange->refuse(status, why); });
        });
  });
}

void Api::abort_all(const std::string& why) {
  const std::lock_guard lock(exchanges_mutex_);
  for (const auto& weak : exchanges_)
    if (const auto exchange = weak.lock()) delivery_.post([exchange, why] { exchange->abort(why); });
}

namespace {

// Now, to the millisecond.
std::string time_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", date, millis);
}

}  // namespace

void Api::log(const HttpExchange& e) const {
  if (!options_.access_log) return;
  const auto text = [](std::string_view s) { return json_string(s.substr(0, 256)); };
  fmt::print(stderr,
             "{{\"time\":\"{}\",\"remote\":{},\"id\":{},\"method\":{},\"path\":{},\"status\":{},\"bytes\":{},"
             "\"seconds\":{:.4f},\"gone\":{}}}\n",
             time_text(), text(e.remote), text(e.request ? e.request->id : ""),
             text(e.request ? e.request->method : ""), text(e.request ? e.request->path : ""), e.status,
             e.bytes, e.seconds, e.gone);
}

void Api::warn(const std::string& id, const std::string& warning) const {
  if (options_.access_log)
    fmt::print(stderr, "{{\"time\":\"{}\",\"id\":{},\"warning\":{}}}\n", time_text(), json_string(id),
               json_string(warning));
}

}  // namespace perigee::serve
