#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <numeric>

namespace perigee {

namespace {

using Clock = std::chrono::steady_clock;

struct Running {
  size_t index;
  const GenerateRequest* request;
  SequenceCache cache;
  LogitsProcessor processor;
  int64_t prefilled = 0;
  Generation result;
  Clock::time_point start = Clock::now(), first_token;

  int64_t prompt_length() const { return static_cast<int64_t>(request->prompt.size()); }
  bool prefilling() const { return prefilled < prompt_length(); }
};

void check_request(const Runner& runner, const GenerateRequest& r) {
  const int64_t limit = runner.config().max_position_embeddings, vocab = runner.config().vocab_size;
  if (r.prompt.empty()) fail(ErrorCode::kBadRequest, "the prompt has no tokens; give at least one");
  if (r.max_tokens < 1) fail(ErrorCode::kBadRequest, "max_tokens {} must be at least 1", r.max_tokens);
  const int64_t need = static_cast<int64_t>(r.prompt.size()) + 1;
  if (limit > 0 && need > limit) {
    fail(ErrorCode::kBadRequest, "the prompt has {} tokens, but the model's context holds {}; shorten it",
         r.prompt.size(), limit);
  }
  check_logits_params(r.logits, static_cast<int>(vocab));
  if (r.prefix && r.prefix->length() >= static_cast<int64_t>(r.prompt.size())) {
    fail(ErrorCode::kBadRequest, "the prefix holds {} tokens of a prompt of {}; it must leave at least one",
         r.prefix->length(), r.prompt.size());
  }
  for (int32_t id : r.prompt) {
    if (id < 0 || id >= vocab)
      fail(ErrorCode::kBadRequest, "token id {} is outside the vocabulary of {}", id, vocab);
  }
}

std::vector<std::pair<int32_t, float>> top_logprobs(const float* logits, int vocab, float log_norm, int n) {
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  n = std::min(n, vocab);
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[a], y = logits[b];
    if (x != x || y != y) return x == x || (y != y && a < b);  // NaN last
    return x != y ? x > y : a < b;
  });
  std::vector<std::pair<int32_t, float>> top;
  for (int i = 0; i < n; ++i) top.emplace_back(order[i], logits[order[i]] - log_norm);
  return top;
}

// Decode rows of every running request, then prompt tokens of those still prefilling, within the budget.
Batch next_batch(std::list<Running>& running, const GenerateOptions& options,
                 std::vector<Running*>& sampled) {
  Batch batch;
  for (Running& r : running) {
    if (r.prefilling()) continue;
    const int32_t last = r.result.tokens.back().id;
    batch.add(r.cache, std::span(&last, 1), 0, 1);
    sampled.push_back(&r);
  }
  int64_t budget = options.max_batched_tokens;
  for (Running& r : running) {
    if (!r.prefilling() || budget == 0) continue;
    const int64_t n = std::min(budget, r.prompt_length() - r.prefilled);
    budget -= n;
    const bool last = r.prefilled + n == r.prompt_length();
    batch.add(r.cache, std::span(r.request->prompt).subspan(r.prefilled, n), 0, last ? 1 : 0);
    r.prefilled += n;
    if (last) sampled.push_back(&r);
  }
  return batch;
}

// Asks whether to go on reading the prompt; true when the request is finished, as cancelled.
bool cancelled(Running& r, const GenerateOptions& options) {
  if (!r.prefilling() || !options.on_prefill || options.on_prefill(r.index, r.prefilled, r.prompt_length()))
    return false;
  r.result.finish_reason = "cancelled";
  r.result.prefill_seconds = std::chrono::duration<double>(Clock::now() - r.start).count();
  return true;
}

// Appends a sampled token; true when the request is finished.
bool append(const Runner& runner, Running& r, GeneratedToken token, const GenerateOptions& options) {
  const GenerateRequest& request = *r.request;
  if (r.result.tokens.empty()) r.first_token = Clock::now();
  r.result.tokens.push_back(std::move(token));
  r.processor.accept(r.result.tokens.back().id);
  const GeneratedToken& t = r.result.tokens.back();
  const bool go_on = !options.on_token || options.on_token(r.index, t);
  const int64_t length = r.prompt_length() + static_cast<int64_t>(r.result.tokens.size());
  const int64_t limit = runner.config().max_position_embeddings;
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), t.id) != request.stop_ids.end()) {
    r.result.finish_reason = "stop";
  } else if (!go_on) {
    r.result.finish_reason = "cancelled";
  } else if (static_cast<int>(r.result.tokens.size()) >= request.max_tokens ||
             (limit > 0 && length >= limit)) {
    r.result.finish_reason = "length";
  } else {
    return false;
  }
  r.result.prefill_seconds = std::chrono::duration<double>(r.first_token - r.start).count();
  r.result.decode_seconds = std::chrono::duration<double>(Clock::now() - r.first_token).count();
  return true;
}

}  // namespace

SequenceCache prefill(Runner& runner, std::span<const int32_t> tokens, const GenerateOptions& options) {
  SequenceCache cache(runner.cache_shape());
  const int64_t total = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < total;) {
    const int64_t n = std::min<int64_t>(options.max_batched_tokens, total - done);
    Batch batch;
    batch.add(cache, tokens.subspan(done, n), 0, 0);
    runner.step(batch);
    done += n;
    if (options.on_prefill) options.on_prefill(0, done, total);
  }
  return cache;
}

std::vector<Generation> generate(Runner& runner, const std::vector<GenerateRequest>& requests,
                                 const GenerateOptions& options) {
  if (options.concurrency < 1)
    fail(ErrorCode::kBadRequest, "concurrency {} must be at least 1", options.concurrency);
  if (options.max_batched_tokens < 1)
    fail(ErrorCode::kBadRequest, "max_batched_tokens {} must be at least 1", options.max_batched_tokens);
  for (const GenerateRequest& r : requests) check_request(runner, r);
  std::vector<Generation> results(requests.size());
  std::list<Running> running;
  size_t next = 0;
  const auto finish = [&](const Running& r) {
    if (options.on_finished) options.on_finished(r.index, r.result);
    results[r.index] = r.result;
  };
  while (next < requests.size() || !running.empty()) {
    while (next < requests.size() && static_cast<int>(running.size()) < options.concurrency) {
      const SequenceCache* prefix = requests[next].prefix;
      running.push_back({.index = next,
                         .request = &requests[next],
                         .cache = prefix ? prefix->copy() : SequenceCache(runner.cache_shape()),
                         .processor = LogitsProcessor(requests[next].logits, requests[next].stop_ids,
                                                      requests[next].prompt),
                         .prefilled = prefix ? prefix->length() : 0,
                         .result = {},
                         .first_token = {}});
      ++next;
    }
    running.remove_if([&](Running& r) {
      const bool drop = cancelled(r, options);
      if (drop) finish(r);
      return drop;
    });
    if (running.empty()) continue;
    std::vector<Running*> sampled;
    const Batch batch = next_batch(running, options, sampled);
    const std::span<const float> logits = runner.step(batch);
    if (sampled.empty()) continue;

    std::vector<SampleParams> params;
    std::vector<int64_t> positions;
    std::vector<const LogitsProcessor*> processors;
    for (const Running* r : sampled) {
      processors.push_back(&r->processor);
      params.push_back(r->request->sampling);
      positions.push_back(r->cache.length());
    }
    const std::vector<Runner::Sampled> tokens = runner.sample(params, positions, processors);
    const int vocab = runner.config().vocab_size;
    std::vector<Running*> finished;
    for (size_t i = 0; i < sampled.size(); ++i) {
      GeneratedToken token{.id = tokens[i].token, .logprob = tokens[i].logprob, .top = {}};
      if (const int n = sampled[i]->request->top_logprobs) {
        token.top = top_logprobs(logits.data() + i * vocab, vocab, tokens[i].log_norm, n);
      }
      if (append(runner, *sampled[i], std::move(token), options)) finished.push_back(sampled[i]);
    }
    for (Running* r : finished) {
      if (r->request->keep_cache) r->result.cache = std::make_shared<SequenceCache>(std::move(r->cache));
      finish(*r);
      running.remove_if([r](const Running& x) { return &x == r; });
    }
  }
  return results;
}

}  // namespace perigee
