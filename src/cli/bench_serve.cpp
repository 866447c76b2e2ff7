// perigee bench serve: load on a running server, and the latencies that its clients see. Terms and formulas
// are those of `vllm bench serve`: TTFT to the first piece, TPOT = (last − first) / (tokens − 1), ITL between
// pieces, E2EL to the last.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/read_file.h"
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/json.h"
#include "cli/latency_plot.h"
#include "cli/load_client.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

namespace json = boost::json;

struct Flags {
  std::string base_url = "http://127.0.0.1:8000", model, endpoint = "/v1/completions", dataset, rate = "inf",
              goodput, out;
  std::string percentiles = "50,90,95,99", ramp = "none";
  LoadTarget target;
  int prompts = 100, input_len = 128, output_len = 64, concurrency = 0, turns = 1;
  double burstiness = 1, range_ratio = 0, think_time = 0, ramp_start = 1, ramp_end = 10;
  uint64_t seed = 0;
  bool ignore_eos = false, json = false;
};

void read_url(Flags& f) {
  std::string rest = f.base_url;
  const auto reject = [&] { fail(ErrorCode::kUsage, "--base-url {}: give http://HOST:PORT", f.base_url); };
  if (!rest.starts_with("http://")) reject();
  rest.erase(0, 7);
  while (rest.ends_with('/')) rest.pop_back();
  const size_t colon = rest.rfind(':');
  if (colon != std::string::npos) {
    f.target.port = std::atoi(rest.c_str() + colon + 1);
    rest.resize(colon);
  } else {
    f.target.port = 80;
  }
  if (rest.empty() || f.target.port < 1 || f.target.port > 65535) reject();
  f.target.host = rest;
  f.target.path = f.endpoint;
}

double read_rate(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size() || !(rate > 0))
    fail(ErrorCode::kUsage, "--request-rate {}: give requests per second, or inf", text);
  return rate;
}

// "ttft:200 tpot:50 e2el:2000", in milliseconds.
std::vector<std::pair<std::string, double>> read_goals(const std::string& text) {
  std::vector<std::pair<std::string, double>> goals;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string goal = text.substr(at, end - at);
    const size_t colon = goal.find(':');
    const std::string name = goal.substr(0, colon);
    const double value = colon == std::string::npos ? 0 : std::atof(goal.c_str() + colon + 1);
    if ((name != "ttft" && name != "tpot" && name != "e2el") || value <= 0)
      fail(ErrorCode::kUsage, "--goodput {}: give e.g. \"ttft:200 tpot:50 e2el:2000\", in milliseconds",
           text);
    goals.emplace_back(name, value / 1000);
    at = end + 1;
  }
  return goals;
}

std::vector<double> read_percentiles(const std::string& text) {
  std::vector<double> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    double p = -1;
    const auto [stop, error] = std::from_chars(one.data(), one.data() + one.size(), p);
    if (error != std::errc() || stop != one.data() + one.size() || p < 0 || p > 100)
      fail(ErrorCode::kUsage, "--metric-percentiles {}: give numbers from 0 to 100, separated by commas",
           text);
    out.push_back(p);
    at = end + 1;
  }
  return out;
}

// As numpy's default: linear between the neighbours.
double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double at = p / 100 * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(at), high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

json::object summary(std::vector<double> values, const std::vector<double>& percentiles) {
  std::sort(values.begin(), values.end());
  const double n = std::max<double>(1, static_cast<double>(values.size()));
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double square = 0;
  for (double v : values) square += (v - mean) * (v - mean);
  json::object out = {{"mean", mean * 1000}, {"std", std::sqrt(square / n) * 1000}};
  for (double p : percentiles) out[fmt::format("p{}", p)] = percentile(values, p) * 1000;
  return out;
}

// When each conversation begins.
std::vector<double> arrivals(const Flags& f, int count) {
  std::mt19937_64 random(f.seed);
  std::vector<double> out;
  double now = 0;
  for (int i = 0; i < count; ++i) {
    out.push_back(now);
    double rate = read_rate(f.rate);
    const double share = count > 1 ? static_cast<double>(i) / (count - 1) : 0;
    if (f.ramp == "linear") rate = f.ramp_start + (f.ramp_end - f.ramp_start) * share;
    if (f.ramp == "exponential") rate = f.ramp_start * std::pow(f.ramp_end / f.ramp_start, share);
    if (std::isinf(rate)) continue;
    // Gamma gaps with this shape: 1 is a Poisson process, less comes in bursts.
    now += std::gamma_distribution<double>(f.burstiness, 1 / (rate * f.burstiness))(random);
  }
  return out;
}

// The prompts: lines of {"prompt", "output_len"?} of the file, or random token ids.
struct Prompt {
  json::value prompt;
  int output_len = 0;
};

std::vector<Prompt> read_prompts(const Flags& f, int count) {
  std::vector<Prompt> out;
  if (!f.dataset.empty()) {
    const std::string text = read_file(f.dataset, ErrorCode::kUsage, "--dataset-path " + f.dataset);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      boost::system::error_code error;
      const json::value line = json::parse(json::string_view(text.data() + at, end - at), error);
      const bool blank = end == at;
      at = end + 1;
      if (blank) continue;
      const json::object* object = error ? nullptr : line.if_object();
      if (!object || !object->contains("prompt"))
        fail(ErrorCode::kUsage, "--dataset-path {}: line {} is not an object with \"prompt\"", f.dataset,
             out.size() + 1);
      const json::value* length = object->if_contains("output_len");
      out.push_back({object->at("prompt"),
                     length && length->is_int64() ? static_cast<int>(length->get_int64()) : f.output_len});
    }
    if (out.empty()) fail(ErrorCode::kUsage, "--dataset-path {}: has no lines", f.dataset);
    const size_t lines = out.size();
    for (size_t i = lines; i < static_cast<size_t>(count); ++i) out.push_back(out[i % lines]);
    out.resize(static_cast<size_t>(count));
    return out;
  }
  std::mt19937_64 random(f.seed + 1);
  const auto length = [&](int middle) {
    std::uniform_int_distribution<int> d(std::max(1, static_cast<int>(middle * (1 - f.range_ratio))),
                                         std::max(1, static_cast<int>(middle * (1 + f.range_ratio))));
    return d(random);
  };
  for (int i = 0; i < count; ++i) {
    json::array ids;
    const int n = length(f.input_len);
    // Ids that every vocabulary has; no control tokens, which stand at its end.
    for (int t = 0; t < n; ++t) ids.push_back(static_cast<int64_t>(random() % 1024));
    out.push_back({std::move(ids), length(f.output_len)});
  }
  return out;
}

std::string body_of(const Flags& f, const Prompt& p, const json::value& prompt) {
  const bool chat = f.endpoint == "/v1/chat/completions";
  json::object body = {{"model", f.model},
                       {"stream", true},
                       {"temperature", 0},
                       {"stream_options", {{"include_usage", true}}},
                       {"max_tokens", p.output_len}};
  if (f.ignore_eos) body["ignore_eos"] = true;
  body[chat ? "messages" : "prompt"] = prompt;
  return json::serialize(body);
}

std::vector<LoadItem> make_items(const Flags& f) {
  const bool chat = f.endpoint == "/v1/chat/completions";
  const int conversations = (f.prompts + f.turns - 1) / f.turns;
  auto prompts = std::make_shared<std::vector<Prompt>>(read_prompts(f, conversations * f.turns));
  const std::vector<double> begin = arrivals(f, conversations);
  std::vector<LoadItem> items;
  for (int c = 0; c < conversations; ++c) {
    for (int turn = 0; turn < f.turns; ++turn) {
      const size_t index = items.size(), first = index - static_cast<size_t>(turn);
      LoadItem item;
      item.due = turn == 0 ? begin[static_cast<size_t>(c)] : f.think_time;
      if (turn > 0) item.after = index - 1;
      item.body = [&f, prompts, chat, first, index](const std::vector<LoadResult>& results) {
        const Prompt& p = (*prompts)[index];
        if (!chat) return body_of(f, p, p.prompt);
        json::array messages;
        for (size_t i = first; i <= index; ++i) {
          const json::value& said = (*prompts)[i].prompt;
          messages.push_back(
              {{"role", "user"}, {"content", said.is_string() ? said : json::value(json::serialize(said))}});
          if (i < index) messages.push_back({{"role", "assistant"}, {"content", results[i].text}});
        }
        return body_of(f, p, messages);
      };
      items.push_back(std::move(item));
    }
  }
  return items;
}

double time_per_output_token(const LoadResult& r) {
  return r.output_tokens > 1 ? (r.last - r.first) / static_cast<double>(r.output_tokens - 1) : 0;
}

// FILE.json gets FILE.svg beside it.
std::string plot_file(const std::string& out) { return std::filesystem::path(out).replace_extension("svg"); }

std::string plot(const Flags& f, const std::vector<LoadResult>& results) {
  Latencies ttft{"TTFT", {}}, tpot{"TPOT", {}}, itl{"ITL", {}}, e2el{"E2EL", {}};
  for (const LoadResult& r : results) {
    if (!r.ok) continue;
    ttft.seconds.push_back(r.first);
    if (r.output_tokens > 1) tpot.seconds.push_back(time_per_output_token(r));
    itl.seconds.insert(itl.seconds.end(), r.gaps.begin(), r.gaps.end());
    e2el.seconds.push_back(r.last);
  }
  return latency_plot(fmt::format("{}: {} requests, {} begun per second", f.model, f.prompts, f.rate),
                      {ttft, tpot, itl, e2el});
}

void write_file(const std::string& path, const std::string& text) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (!file) fail(ErrorCode::kUsage, "--out: {} cannot be written", path);
  fmt::print(file, "{}", text);
  if (std::fclose(file) != 0) fail(ErrorCode::kUsage, "--out: {} cannot be written", path);
}

json::object report(const Flags& f, const std::vector<LoadResult>& results, double duration) {
  const std::vector<double> percentiles = read_percentiles(f.percentiles);
  const auto goals = read_goals(f.goodput);
  std::vector<double> ttft, tpot, itl, e2el;
  int64_t failed = 0, input = 0, cached = 0, output = 0, good = 0;
  std::string first_error;
  std::vector<std::pair<double, int>> changes;  // of the number under way
  for (const LoadResult& r : results) {
    if (!r.ok) {
      ++failed;
      if (first_error.empty()) first_error = r.error;
      continue;
    }
    input += r.prompt_tokens;
    cached += r.cached_tokens;
    output += r.output_tokens;
    ttft.push_back(r.first);
    e2el.push_back(r.last);
    itl.insert(itl.end(), r.gaps.begin(), r.gaps.end());
    const double each = time_per_output_token(r);
    if (r.output_tokens > 1) tpot.push_back(each);
    good += std::all_of(goals.begin(), goals.end(), [&](const auto& goal) {
      return (goal.first == "ttft" ? r.first : goal.first == "tpot" ? each : r.last) <= goal.second;
    });
    changes.emplace_back(r.sent, 1);
    changes.emplace_back(r.sent + r.last, -1);
  }
  std::sort(changes.begin(), changes.end());
  int now = 0, most = 0;
  for (const auto& [when, change] : changes) most = std::max(most, now += change);
  const double n = static_cast<double>(ttft.size());
  json::object out = {{"duration", duration},
                      {"completed", ttft.size()},
                      {"failed", failed},
                      {"total_input_tokens", input},
                      {"total_cached_tokens", cached},
                      {"total_output_tokens", output},
                      {"request_throughput", n / duration},
                      {"output_throughput", static_cast<double>(output) / duration},
                      {"total_token_throughput", static_cast<double>(input + output) / duration},
                      {"max_concurrent_requests", most},
                      {"ttft_ms", summary(ttft, percentiles)},
                      {"tpot_ms", summary(tpot, percentiles)},
                      {"itl_ms", summary(itl, percentiles)},
                      {"e2el_ms", summary(e2el, percentiles)}};
  if (!goals.empty()) out["request_goodput"] = static_cast<double>(good) / duration;
  if (!first_error.empty()) out["first_error"] = first_error;
  return out;
}

void print_text(const json::object& r) {
  const auto number = [&](const char* key) { return r.at(key).to_number<double>(); };
  fmt::print("completed {} ({} failed) in {:.2f} s\n", number("completed"), number("failed"),
             number("duration"));
  fmt::print("{:.2f} requests/s, {:.1f} output tokens/s, {:.1f} tokens/s in all, at most {} at once\n",
             number("request_throughput"), number("output_throughput"), number("total_token_throughput"),
             number("max_concurrent_requests"));
  if (r.contains("request_goodput")) fmt::print("goodput {:.2f} requests/s\n", number("request_goodput"));
  for (const char* name : {"ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"}) {
    fmt::print("{:8}", name);
    for (const auto& [key, value] : r.at(name).as_object())
      fmt::print("  {} {:.2f}", std::string_view(key), value.to_number<double>());
    fmt::print("\n");
  }
  if (r.contains("first_error"))
    fmt::print("first error: {}\n", std::string_view(r.at("first_error").as_string()));
}

int run_bench_serve(Flags& f) {
  read_url(f);
  if (f.turns > 1 && f.endpoint != "/v1/chat/completions")
    fail(ErrorCode::kUsage, "--turns {}: turns are of a chat; add --endpoint /v1/chat/completions", f.turns);
  read_rate(f.rate);
  read_goals(f.goodput);
  read_percentiles(f.percentiles);
  if (!f.out.empty()) check_writable(f.out);
  if (!f.out.empty() && plot_file(f.out) == f.out)
    fail(ErrorCode::kUsage, "--out {}: the plot gets that name; give one that ends in .json", f.out);
  const auto [status, models] = http_get(f.target, "/v1/models");
  boost::system::error_code error;
  const json::value list = json::parse(models, error);
  if (status != 200 || error)
    fail(ErrorCode::kUsage, "--base-url {}: /v1/models answers {}; is --api-key right?", f.base_url, status);
  if (f.model.empty()) f.model = list.at("data").at(0).at("id").as_string();
  const auto [version_status, version] = http_get(f.target, "/version");
  const json::value identity = version_status == 200 ? json::parse(version, error) : json::value(nullptr);
  const std::string digest = identity.is_object() && identity.get_object().contains("numerics")
                                 ? std::string(identity.at("numerics").at("digest").as_string())
                                 : "";

  const std::vector<LoadItem> items = make_items(f);
  BenchReport bench(f.model, 0, "", digest);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<LoadResult> results =
      run_load(f.target, items, f.concurrency > 0 ? f.concurrency : std::numeric_limits<int>::max(), nullptr);
  const double duration = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  json::object out = report(f, results, duration);
  bench.settings = {{"base_url", f.base_url},
                    {"endpoint", f.endpoint},
                    {"num_prompts", f.prompts},
                    {"request_rate", f.rate},
                    {"burstiness", f.burstiness},
                    {"max_concurrency", f.concurrency},
                    {"random_input_len", f.input_len},
                    {"random_output_len", f.output_len},
                    {"turns", f.turns},
                    {"seed", f.seed}};
  for (const char* name : {"request_throughput", "output_throughput", "total_token_throughput"})
    bench.add({.name = name, .value = out.at(name).to_number<double>(), .unit = "1/s"});
  json::object all = bench.json();
  for (const auto& field : out) all[field.key()] = field.value();
  if (f.json)
    fmt::print("{}\n", json_text(all));
  else
    print_text(out);
  if (!f.out.empty()) {
    write_file(f.out, json_text(all) + "\n");
    write_file(plot_file(f.out), plot(f, results));
  }
  return out.at("failed").to_number<int64_t>() > 0 ? 1 : 0;
}

}  // namespace

void add_bench_serve(CLI::App& bench, Action& run) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  CLI::App* sub = bench.add_subcommand("serve", "load on a running server; what its clients see");
  sub->add_option("--base-url", f.base_url, "of the server");
  sub->add_option("--api-key", f.target.api_key, "it asks for");
  sub->add_option("--model", f.model, "a name it serves")->default_str("its first");
  sub->add_option("--endpoint", f.endpoint, "which API")
      ->check(CLI::IsMember({"/v1/completions", "/v1/chat/completions"}));
  sub->add_option("--num-prompts", f.prompts, "requests, all turns together")
      ->transform(whole_number(1, 1 << 20));
  sub->add_option("--dataset-path", f.dataset, "JSON lines with prompt and, if need be, output_len")
      ->default_str("random tokens");
  sub->add_option("--random-input-len", f.input_len, "tokens of a prompt")
      ->transform(whole_number(1, 1 << 20));
  sub->add_option("--random-output-len", f.output_len, "most tokens of an answer")
      ->transform(whole_number(1, 1 << 20));
  sub->add_option("--random-range-ratio", f.range_ratio, "lengths vary by this share")->check(number(0, 1));
  sub->add_option("--request-rate", f.rate, "conversations begun per second, or inf");
  sub->add_option("--burstiness", f.burstiness, "shape of the gamma gaps: 1 is Poisson, less comes in bursts")
      ->check(number(0.01, 1000));
  sub->add_option("--ramp-up-strategy", f.ramp, "in place of a fixed rate")
      ->check(CLI::IsMember({"none", "linear", "exponential"}));
  sub->add_option("--ramp-up-start-rps", f.ramp_start, "its first rate")->check(number(0.001, 1e6));
  sub->add_option("--ramp-up-end-rps", f.ramp_end, "its last")->check(number(0.001, 1e6));
  sub->add_option("--max-concurrency", f.concurrency, "requests at once; 0: no limit")
      ->transform(whole_number(0, 1 << 16));
  sub->add_option("--turns", f.turns, "of a conversation; each holds the answers before it")
      ->transform(whole_number(1, 1000));
  sub->add_option("--think-time", f.think_time, "seconds between an answer and the next turn")
      ->check(number(0, 3600));
  sub->add_option("--goodput", f.goodput, "count requests within these, e.g. \"ttft:200 tpot:50\" (ms)");
  sub->add_option("--metric-percentiles", f.percentiles, "to report");
  sub->add_flag("--ignore-eos", f.ignore_eos, "answers go on to their longest");
  sub->add_option("--seed", f.seed, "of lengths, tokens and arrivals")->transform(whole_number(0));
  sub->add_option("--out", f.out,
                  "also write the JSON to this file, and a plot of the latencies beside it (.svg)");
  sub->add_flag("--json", f.json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_bench_serve(*flags); }; });
}

}  // namespace perigee::cli
