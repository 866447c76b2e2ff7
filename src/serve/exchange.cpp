#include "serve/exchange.h"

#include "serve/api_error.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace {
double seconds(Exchange::Clock::duration d) { return std::chrono::duration<double>(d).count(); }
}  // namespace

std::string sse(const boost::json::value& data) {
  return "data: " + json_text(data, JsonSpacing::kCompact) + "\n\n";
}

std::string last_chunks(bool include_usage, boost::json::object head, const Usage& usage) {
  std::string out;
  if (include_usage) {
    head["choices"] = boost::json::array();
    head["usage"] = usage_json(usage);
    out += sse(head);
  }
  return out + "data: [DONE]\n\n";
}

std::string error_chunks(int status, const std::string& message) {
  return "data: " + error_body(status, message) + "\n\ndata: [DONE]\n\n";
}

boost::json::object usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Exchange::Exchange(ExchangeServices services, std::shared_ptr<HttpReply> reply)
    : services_(services),
      reply_(std::move(reply)),
      in_flight_(std::make_shared<Metrics::InFlight>(services.metrics)) {}

void Exchange::watch() {
  reply_->on_gone([weak = weak_from_this(), &delivery = services_.delivery] {
    const auto self = weak.lock();
    if (!self) return;
    self->gone_ = true;
    delivery.post([self] { self->cancel(); });
  });
}

void Exchange::start(Plan plan) {
  if (gone_ || done_) return;
  plan_ = std::move(plan);
  submitted_ = Clock::now();
  for (AnswerText& text : plan_.answers)
    choices_.push_back({.text = std::move(text), .held = {}, .last_token = {}});
  unfinished_ = choices_.size();
  prompt_tokens_.resize(plan_.requests.size());
  prompt_counted_.resize(plan_.requests.size());
  if (plan_.stream)
    reply_->on_silence([weak = weak_from_this(), &delivery = services_.delivery] {
      if (const auto self = weak.lock()) delivery.post([self] { self->on_silence(); });
    });
  // The engine's thread must not let go of the last reference: the listener's task does, on the delivery
  // thread.
  for (size_t i = 0; i < plan_.requests.size(); ++i) {
    Request& request = plan_.requests[i];
    const int64_t prompt = static_cast<int64_t>(request.prompt.size());
    usage_.prompt_tokens += prompt;
    services_.metrics.prompt_tokens_total += prompt;
    services_.metrics.prompt_tokens.observe(static_cast<double>(prompt));
    services_.metrics.n.observe(request.n);
    services_.metrics.max_tokens.observe(request.max_tokens);
    branches_.push_back(request.n);
    WorkerPool& delivery = services_.delivery;
    tickets_.push_back(services_.engine.submit(
        std::move(request), {.on_event =
                                 [self = shared_from_this(), i, &delivery](Event&& event) {
                                   delivery.post([self, i, event = std::move(event)]() mutable {
                                     self->on_event(i, std::move(event));
                                   });
                                 },
                             .on_refused =
                                 [self = shared_from_this(), &delivery](const Error& error) {
                                   delivery.post([self, error] { self->on_refused(error); });
                                 }}));
  }
  plan_.requests.clear();
}

void Exchange::on_refused(const Error& error) {
  if (error.code() == ErrorCode::kBusy) ++services_.metrics.rejections;
  fail(http_status(error), error.what());
}

void Exchange::refuse(int status, const std::string& message) { fail(status, message); }

void Exchange::abort(const std::string& why) { fail(503, why); }

void Exchange::on_event(size_t prompt, Event event) {
  if (done_ || gone_) return;
  if (event.finish == FinishReason::kError) return fail(500, event.error);
  take(prompt, event);
}

void Exchange::take(size_t prompt, const Event& event) {
  if (event.branch == 0 && !prompt_counted_[prompt] &&
      (!event.tokens.empty() || event.finish != FinishReason::kNone)) {
    prompt_counted_[prompt] = true;
    usage_.cached_tokens += event.cached_tokens;
  }
  auto& of_prompt = prompt_tokens_[prompt];
  of_prompt.insert(of_prompt.end(), event.prompt_tokens.begin(), event.prompt_tokens.end());
  size_t index = static_cast<size_t>(event.branch);
  for (size_t i = 0; i < prompt; ++i) index += static_cast<size_t>(branches_[i]);
  Choice& choice = choices_[index];
  if (choice.finished) return;
  if (event.finish == FinishReason::kCancelled) return fail(503, "the request was cancelled");
  if (event.tokens.empty() && event.finish == FinishReason::kNone) return;
  if (!of_prompt.empty())
    plan_.envelope->prompt_logprobs(static_cast<int>(prompt), std::exchange(of_prompt, {}));

  const Clock::time_point now = Clock::now();
  Metrics& m = services_.metrics;
  if (!event.tokens.empty()) {
    if (choice.text.tokens() == 0) {
      if (first_token_ == Clock::time_point()) first_token_ = now;
      m.time_to_first_token.observe(seconds(now - start_));
    } else {
      const double each = seconds(now - choice.last_token) / static_cast<double>(event.tokens.size());
      for (size_t i = 0; i < event.tokens.size(); ++i) m.inter_token.observe(each);
    }
    choice.last_token = now;
  }
  AnswerDelta delta;
  if (plan_.discard_tokens) {
    delta.finish = "length";
  } else {
    const int64_t before = choice.text.tokens();
    delta = choice.text.push(event.tokens, event.finish);
    usage_.completion_tokens += choice.text.tokens() - before;
  }
  if (!delta.finish.empty()) {
    choice.finished = true;
    --unfinished_;
    m.finished(delta.finish);
    const double count = static_cast<double>(choice.text.tokens());
    m.generation_tokens.observe(count);
    if (count > 1) m.time_per_output_token.observe(seconds(now - first_token_) / (count - 1));
    if (event.finish == FinishReason::kNone) services_.engine.cancel(tickets_[prompt], event.branch);
  }
  emit(index, std::move(delta));
  if (unfinished_ == 0) finish();
}

void Exchange::emit(size_t index, AnswerDelta delta) {
  Choice& choice = choices_[index];
  choice.held.append(std::move(delta));
  if (!plan_.stream || !choice.held.visible()) return;
  begin_stream();
  reply_->write(plan_.envelope->events(static_cast<int>(index), std::exchange(choice.held, {}), usage_));
}

void Exchange::begin_stream() {
  if (std::exchange(begun_, true)) return;
  Headers headers = plan_.headers;
  headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  reply_->begin(200, std::move(headers));
}

// A long queue or prompt: a comment keeps proxies and clients from giving up.
void Exchange::on_silence() {
  if (done_ || gone_) return;
  begin_stream();
  reply_->write(": keep-alive\n\n");
}

void Exchange::finish() {
  if (const std::string fault = plan_.fault ? plan_.fault() : ""; !fault.empty()) return fail(400, fault);
  done_ = true;
  services_.metrics.e2e.observe(seconds(Clock::now() - start_));
  if (plan_.stream) {
    begin_stream();
    reply_->write(plan_.envelope->last_events(usage_));
    reply_->end();
  } else {
    std::vector<AnswerDelta> whole;
    for (Choice& choice : choices_) whole.push_back(std::move(choice.held));
    Headers headers = std::move(plan_.headers);
    headers.emplace_back("Content-Type", "application/json");
    reply_->send(200, std::move(headers), plan_.envelope->whole(std::move(whole), usage_));
  }
  in_flight_ = nullptr;
}

void Exchange::fail(int status, const std::string& message) {
  if (done_ || gone_) return;
  done_ = true;
  for (Ticket ticket : tickets_) services_.engine.cancel(ticket);
  if (!begun_) {
    Headers headers = {{"Content-Type", "application/json"}};
    if (status == 429 || status == 503) headers.emplace_back("Retry-After", "1");
    reply_->send(status, std::move(headers), error_body(status, message));
  } else {
    reply_->write(plan_.envelope->error_events(status, message));
    reply_->end();
  }
  in_flight_ = nullptr;
}

void Exchange::cancel() {
  if (done_) return;
  done_ = true;
  for (Ticket ticket : tickets_) services_.engine.cancel(ticket);
  services_.metrics.finished("abort");
  in_flight_ = nullptr;
}

}  // namespace perigee::serve
