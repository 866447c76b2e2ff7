// perigee serve: the OpenAI-compatible server over one engine.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <csignal>

#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/engine_flags.h"
#include "cli/familiar_flags.h"
#include "cli/flags.h"
#include "cli/served_model.h"
#include "cli/streams.h"
#include "cli/validators.h"
#include "serve/api.h"
#include "serve/api_error.h"
#include "serve/engine_thread.h"

namespace perigee::cli {

namespace {

struct Flags {
  ModelFlags model;
  serve::HttpOptions http;
  serve::ApiOptions api;
  ServedModelFlags served;
  std::string allowed_origins, metrics_compat = "none", config, log_level = "info";
  FamiliarFlags familiar;
  EngineFlags engine = {.scheduler = {.max_num_seqs = 64, .max_num_batched_tokens = 0}};
  int shutdown_timeout = 30;
  bool no_access_log = false;
};

// vLLM's form: a JSON list of strings.
std::vector<std::string> read_origins(const std::string& text) {
  std::vector<std::string> out;
  if (text.empty()) return out;
  boost::system::error_code error;
  const boost::json::value list = boost::json::parse(text, error);
  const auto reject = [&] {
    fail(ErrorCode::kUsage, "--allowed-origins {}: give a JSON list of strings, e.g. '[\"*\"]'", text);
  };
  if (error || !list.is_array()) reject();
  for (const boost::json::value& origin : list.get_array()) {
    if (!origin.is_string()) reject();
    out.emplace_back(origin.get_string());
  }
  return out;
}

// Waits, on the I/O thread, until nothing is under way, or until `deadline`, and stops.
void drain(serve::HttpServer& server, serve::Api& api, double seconds_left) {
  constexpr double kPause = 0.05;
  if (server.busy() == 0 && api.in_flight() == 0) return server.stop();
  if (seconds_left <= 0) {
    api.abort_all("the server stopped before the answer was complete");
    return server.after(0.5, [&server] { server.stop(); });
  }
  server.after(kPause, [&server, &api, seconds_left] { drain(server, api, seconds_left - kPause); });
}

int run_serve(Flags& f) {
  f.familiar.report(f.model.model);
  const ChatModel chat(f.model.model);
  f.api.allowed_origins = read_origins(f.allowed_origins);
  f.api.access_log =
      !f.no_access_log && f.log_level[0] != 'w' && f.log_level[0] != 'e' && f.log_level[0] != 'c';
  f.api.vllm_metrics = f.metrics_compat == "vllm";
  if (const char* key = std::getenv("PERIGEE_API_KEY"); key && *key) f.api.api_keys.emplace_back(key);
  if (f.http.certificate_file.empty() != f.http.key_file.empty())
    fail(ErrorCode::kUsage, "--ssl-certfile and --ssl-keyfile go together; give both");
  // The port first: a port in use should not cost the time of loading a model.
  serve::Api* api_pointer = nullptr;
  f.http.admit = [&](const serve::HttpRequest& request) { return api_pointer->admit(request); };
  f.http.handler = [&](auto request, auto reply) {
    api_pointer->handle(std::move(request), std::move(reply));
  };
  f.http.refusal = [](int status, std::string_view message) { return serve::error_body(status, message); };
  f.http.common_headers = [&](const serve::HttpRequest& request) {
    return api_pointer->common_headers(request);
  };
  f.http.log = [&](const serve::HttpExchange& exchange) { api_pointer->log(exchange); };
  serve::HttpServer server(f.http);

  Recording recording(f.engine);
  const PrefixCacheOptions prefixes = f.engine.prefix_cache(f.model);
  SchedulerOptions& scheduler = f.engine.scheduler;
  Runner runner = f.model.load(scheduler.max_num_seqs, scheduler.max_num_batched_tokens);
  if (runner.memory().on_host()) f.familiar.report_on_cpu();
  chat.check_fits(runner.config());
  f.engine.settle(runner.memory());
  const serve::ServedModel model = f.served.make(f.model, chat, runner);
  serve::EngineThread engine(runner, prefixes,
                             {.scheduler = scheduler, .log = recording.start(f.model, f.engine, runner)});
  serve::Api api(model, engine, f.api);
  api.connections = [&server] { return server.connections(); };
  api_pointer = &api;
  fmt::print(stderr, "{}: {} threads, numerics {}, KV cache {} rows, context {} tokens\n", f.model.model,
             runner.threads(), runner.numerics().digest, runner.pool().rows(), model.max_model_len);
  bool stopping = false;
  server.catch_signals([&](int signal) {
    if (std::exchange(stopping, true)) _exit(128 + signal);  // asked twice: at once
    api.drain();
    fmt::print(stderr, "stopping: {} requests under way, at most {} s\n", api.in_flight(),
               f.shutdown_timeout);
    drain(server, api, f.shutdown_timeout);
  });
  fmt::print(stderr, "serving {} at {}://{}:{} (Ctrl-C stops)\n", model.name(),
             f.http.certificate_file.empty() ? "http" : "https",
             f.http.host.find(':') == std::string::npos ? f.http.host : "[" + f.http.host + "]",
             server.port());
  server.run();
  engine.stop();
  api.stop();
  return 0;
}

void add_flags(CLI::App& app, Flags& f) {
  const auto in = [](const char* group, CLI::Option* option) {
    option->group(group);
    return option;
  };
  // What it says is among the arguments by now (config_file.h).
  app.add_option("--config", f.config,
                 "YAML or JSON file of flags and values; the command line goes before it");
  const char* kServer = "Server";
  in(kServer, app.add_option("--host", f.http.host, "address to listen on; 0.0.0.0 for all"));
  in(kServer, app.add_option("--port", f.http.port, "0 takes a free one")->transform(whole_number(0, 65535)));
  in(kServer, app.add_option("--api-key", f.api.api_keys,
                             "clients must send it; may be given again, or as PERIGEE_API_KEY")
                  ->allow_extra_args(false)
                  ->check(not_empty()));
  in(kServer, app.add_option("--allowed-origins", f.allowed_origins, "CORS: a JSON list, e.g. '[\"*\"]'"));
  in(kServer, app.add_option("--ssl-certfile,--ssl-cert-file", f.http.certificate_file,
                             "PEM certificate chain: serve https"));
  in(kServer, app.add_option("--ssl-keyfile,--ssl-key-file", f.http.key_file, "its key"));
  in(kServer, app.add_option("--shutdown-timeout", f.shutdown_timeout,
                             "seconds that requests have to finish after SIGTERM")
                  ->transform(whole_number(0, 1 << 20)));
  in(kServer, app.add_option("--max-requests", f.api.max_requests, "under way at once; more are answered 429")
                  ->transform(whole_number(1, 1 << 20)));
  in(kServer, app.add_option("--max-body-bytes", f.http.limits.body_bytes, "of a request")
                  ->transform(whole_number(1024, uint64_t{1} << 34)));
  in(kServer,
     app.add_option("--keep-alive", f.http.limits.idle_seconds, "seconds that an idle connection stays open")
         ->transform(whole_number(1, 1 << 20)));
  in(kServer, app.add_flag("--disable-access-log,--disable-uvicorn-access-log", f.no_access_log,
                           "no line of JSON per request on stderr"));
  in(kServer, app.add_option("--uvicorn-log-level", f.log_level, "above info: no line per request either")
                  ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical"})));
  in(kServer, app.add_option("--metrics-compat", f.metrics_compat, "vllm: /metrics has vLLM's names too")
                  ->check(CLI::IsMember({"none", "vllm"})));
  f.served.add_to(app);
  in("API", app.add_option("--seed", f.served.seed, "of requests without one; each draws its own when absent")
                ->transform(whole_number(0)));
  const char* kEngine = "Engine";
  in(kEngine,
     app.add_option("--max-num-seqs,--parallel", f.engine.scheduler.max_num_seqs, "answers computed at once")
         ->transform(whole_number(1, 1 << 16)));
  in(kEngine,
     app.add_option("--max-num-batched-tokens,-b,--batch-size", f.engine.scheduler.max_num_batched_tokens,
                    "tokens of one step; 512 on a CPU, 4096 on a GPU when not given")
         ->transform(token_count(16, 1 << 20)));
  in(kEngine, app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", f.engine.prefix_caching,
                           "reuse the prefixes of earlier prompts (on)"));
  f.engine.add_common_to(app);
  f.familiar.add_to(app);
}

}  // namespace

void add_serve(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("serve", "an OpenAI-compatible server");
  flags->model.add_to(*sub);
  add_flags(*sub, *flags);
  sub->callback([flags, &run] { run = [flags] { return run_serve(*flags); }; });
}

}  // namespace perigee::cli
