#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "engine/event_log.h"
#include "engine/logprobs.h"

namespace perigee {

namespace {

// More answers than this to one prompt is a slip, not a request.
constexpr int kMostAnswers = 1024;

template <typename T>
void check_range(const char* field, T value, bool ok, const char* allowed) {
  if (!ok) fail(ErrorCode::kBadRequest, "{} {} must be {}", field, value, allowed);
}

SchedulerOptions scheduler_options(const EngineOptions& options, Runner& runner) {
  SchedulerOptions out = options.scheduler;
  if (!out.look_ahead) out.look_ahead = looks_ahead(runner.memory());
  // A recorded step must not depend on how fast rows are copied.
  out.wait_for_copies |= options.log != nullptr;
  return out;
}

// A branch draws with a seed of its own, so that n answers are those of n requests.
SampleParams params_of(const Request& request, int branch) {
  SampleParams params = request.sampling;
  params.seed += static_cast<uint64_t>(branch);
  return params;
}

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

void print_fault(const std::string& fault) { fmt::print(stderr, "{}\n", fault); }

Engine::Engine(Runner& runner, PrefixTree* prefixes, EngineOptions options)
    : runner_(runner),
      prefixes_(prefixes),
      options_(std::move(options)),
      scheduler_(runner.pool(), prefixes, scheduler_options(options_, runner)) {}

Engine::~Engine() = default;

// --- Requests

void Engine::validate(const Request& r) const {
  const ModelConfig& config = runner_.config();
  const int64_t limit = config.max_position_embeddings, vocab = config.vocab_size;
  const int64_t prompt = static_cast<int64_t>(r.prompt.size());
  if (r.prompt.empty()) fail(ErrorCode::kBadRequest, "the prompt has no tokens; give at least one");
  check_range("max_tokens", r.max_tokens, r.max_tokens >= 1, "at least 1");
  check_range("n", r.n, r.n >= 1 && r.n <= kMostAnswers, "in [1, 1024]");
  check_range("top_logprobs", r.top_logprobs, r.top_logprobs >= 0, "at least 0");
  check_range("temperature", r.sampling.temperature,
              r.sampling.temperature >= 0 && std::isfinite(r.sampling.temperature), "a number of at least 0");
  check_range("top_p", r.sampling.top_p, r.sampling.top_p >= 0 && r.sampling.top_p <= 1, "in [0, 1]");
  check_range("top_k", r.sampling.top_k, r.sampling.top_k >= 0, "at least 0 (0: all)");
  if (limit > 0 && prompt + 1 > limit) {
    fail(ErrorCode::kBadRequest, "the prompt has {} tokens, but the model's context holds {}; shorten it",
         prompt, limit);
  }
  check_logits_params(r.logits, static_cast<int>(vocab));
  for (int32_t id : r.prompt) {
    if (id < 0 || id >= vocab)
      fail(ErrorCode::kBadRequest, "token id {} is outside the vocabulary of {}", id, vocab);
  }
  const int64_t length = limit > 0 ? std::min(prompt + r.max_tokens, limit) : prompt + r.max_tokens;
  const int64_t rows = CachedSequence::most_rows(runner_.pool().plan(), length), all = runner_.pool().rows();
  if (rows > all) {
    fail(ErrorCode::kBadRequest,
         "a prompt of {} tokens and {} more may need {} cache rows, but there are {}; shorten it or give the "
         "cache "
         "more memory",
         prompt, r.max_tokens, rows, all);
  }
}

RequestId Engine::submit(Request request) {
  validate(request);
  if (static_cast<size_t>(scheduler_.waiting()) + static_cast<size_t>(request.n) > options_.max_waiting) {
    fail(ErrorCode::kBusy, "{} requests wait already, of at most {}; try again later", scheduler_.waiting(),
         options_.max_waiting);
  }
  const RequestId id = next_id_++;
  if (options_.log) options_.log->submit(id, request);
  auto sequence = std::make_unique<Sequence>(Sequence{
      .request = id,
      .asked = nullptr,
      .tokens = request.prompt,
      .processor = LogitsProcessor(request.logits, request.stop_ids, request.prompt),
  });
  for (int b = 1; b < request.n; ++b) sequence->siblings.push_back(b);
  sequence->asked = std::make_shared<const Request>(std::move(request));
  scheduler_.add(std::move(sequence));
  return id;
}

void Engine::cancel(RequestId request, int branch) {
  if (options_.log) options_.log->cancel(request, branch);
  for (Sequence* s : scheduler_.find(request)) {
    if (branch == kAllBranches) {
      finish(*s, FinishReason::kCancelled);
    } else if (s->branch == branch && s->siblings.empty()) {
      finish(*s, FinishReason::kCancelled);
    } else if (s->branch == branch) {  // the next one computes the prompt in its place
      events_.push_back({.request = request, .branch = branch, .finish = FinishReason::kCancelled});
      s->branch = s->siblings.front();
      s->siblings.erase(s->siblings.begin());
    } else if (std::erase(s->siblings, branch) > 0) {
      events_.push_back({.request = request, .branch = branch, .finish = FinishReason::kCancelled});
    }
  }
}

bool Engine::reset_prefix_cache() {
  if (!idle()) return false;
  if (options_.log) options_.log->reset_prefix_cache();
  if (prefixes_) prefixes_->clear();
  return true;
}

std::vector<Event> Engine::take_events() { return std::exchange(events_, {}); }

std::optional<Engine::Progress> Engine::progress(RequestId request) const {
  for (const Sequence* s : scheduler_.find(request)) {
    const int64_t computed = s->cached ? s->cached->cache().length() : 0;
    return Progress{.computed = std::min(computed, s->prompt_tokens()), .prompt = s->prompt_tokens()};
  }
  return std::nullopt;
}

Engine::Stats Engine::stats() const {
  Stats s = stats_;
  const CachePool& pool = runner_.pool();
  s.preemptions = scheduler_.preemptions();
  s.running = scheduler_.running();
  s.waiting = scheduler_.waiting();
  s.rows = pool.rows();
  s.rows_in_use = pool.rows() - pool.free_rows() - (prefixes_ ? prefixes_->evictable_rows() : 0);
  return s;
}

// --- One step

bool Engine::step() {
  if (scheduler_.idle()) return false;
  phase(StepPhase::kStart);
  try {
    if (under_way_.empty()) launch(scheduler_.next());
    if (StepPlan ahead = plan_ahead(); !ahead.empty()) {
      launch(std::move(ahead));
      ++stats_.steps_ahead;
    }
    const StepPlan plan = std::move(under_way_.front());
    under_way_.pop_front();
    const Outcome outcome = runner_.collect();
    phase(StepPhase::kComputed);
    if (prefixes_) prefixes_->poll();
    ++stats_.steps;
    if (options_.log) options_.log->step(plan, outcome.logits);
    for (const ScheduledRows& rows : plan.rows) {
      if (rows.sequence) finish_rows(rows, outcome);
    }
    if (prefixes_ && (scheduler_.idle() || prefixes_->options().debug)) check_cache();
  } catch (const Error& e) {
    fail_all(e.what());
  }
  phase(StepPhase::kDone);
  return true;
}

void Engine::phase(StepPhase phase) const {
  if (options_.on_phase) options_.on_phase(phase);
}

// Begins to compute a step: one token per row of logits is drawn. Those of prompt rows are not used, but
// their normalisers are.
void Engine::launch(StepPlan plan) {
  phase(StepPhase::kScheduled);
  const size_t n = plan.batch.logit_rows.size();
  std::vector<SampleParams> params(n, SampleParams{.temperature = 0});
  std::vector<int64_t> positions(n, 0);
  std::vector<const LogitsProcessor*> processors(n, nullptr);
  std::deque<LogitsProcessor> after_drafts;
  for (const ScheduledRows& rows : plan.rows) {
    if (!rows.samples) continue;
    const Sequence& s = *rows.sequence;
    const int drafts = static_cast<int>(rows.drafts.size());
    const int64_t next = rows.start + rows.tokens - drafts;
    for (int i = 0; i <= drafts; ++i) {
      const int at = rows.first_logit + rows.logits - 1 - drafts + i;
      params[at] = params_of(*s.asked, s.branch);
      positions[at] = next + i;
      processors[at] = &s.processor;
      if (i > 0 && s.processor.active()) {
        after_drafts.push_back(i > 1 ? *processors[at - 1] : s.processor);
        after_drafts.back().accept(rows.drafts[i - 1]);
        processors[at] = &after_drafts.back();
      }
    }
    for (int f = 0; f < rows.forks; ++f) {
      const int at = rows.first_fork_logit + f;
      params[at] = params_of(*s.asked, s.siblings[f]);
      positions[at] = next;
      processors[at] = &s.processor;
    }
  }
  runner_.compute(plan.batch);
  runner_.draw(params, positions, processors, wants_logits(plan));
  under_way_.push_back(std::move(plan));
  phase(StepPhase::kComputed);
}

// Whether more than the drawn tokens' own log-probabilities is asked for.
bool Engine::wants_logits(const StepPlan& plan) const {
  return options_.log || std::any_of(plan.rows.begin(), plan.rows.end(), [](const ScheduledRows& rows) {
           const Sequence& s = *rows.sequence;
           return rows.logits > 0 &&
                  (s.scores_prompt() || s.asked->top_logprobs > 0 || s.asked->processed_logprobs);
         });
}

// The step after the one under way, if it can be told without that one's tokens.
StepPlan Engine::plan_ahead() const {
  return scheduler_.ahead(under_way_.front(), [&](const Sequence& s) {
    return !reaches_length(s, static_cast<int64_t>(s.tokens.size()) + 1);
  });
}

void Engine::finish_rows(const ScheduledRows& rows, const Outcome& outcome) {
  Sequence& s = *rows.sequence;
  if (rows.start < s.prompt_tokens()) stats_.prompt_tokens += rows.tokens;
  if (rows.drafts.empty()) s.cached->stepped();
  if (s.scores_prompt()) report_prompt(rows, outcome);
  if (!rows.samples) return;
  std::vector<Sequence*> forks = fork(rows);
  for (size_t f = 0; f < forks.size(); ++f)
    append(*forks[f], {}, rows.first_fork_logit + static_cast<int>(f), outcome);
  append(s, rows.drafts, rows.first_logit + rows.logits - 1 - static_cast<int>(rows.drafts.size()), outcome);
}

void Engine::report_prompt(const ScheduledRows& rows, const Outcome& outcome) {
  Sequence& s = *rows.sequence;
  Event event{.request = s.request, .branch = s.branch, .cached_tokens = s.cached_tokens};
  for (int i = 0; i < rows.logits; ++i) {
    const int64_t position =
        rows.start + rows.tokens - rows.logits + i + 1;  // of the token that row i foretells
    if (position != s.scored || position >= s.prompt_tokens()) continue;
    const int at = rows.first_logit + i;
    event.prompt_tokens.push_back(raw(at, s.tokens[position], s.asked->prompt_logprobs, outcome));
    ++s.scored;
  }
  if (!event.prompt_tokens.empty()) events_.push_back(std::move(event));
}

// The siblings of a computed prompt: the first rows.forks run at once, the others wait.
std::vector<Sequence*> Engine::fork(const ScheduledRows& rows) {
  Sequence& s = *rows.sequence;
  std::vector<Sequence*> running;
  for (int branch : std::exchange(s.siblings, {})) {
    auto sibling = std::make_unique<Sequence>(Sequence{.request = s.request,
                                                       .branch = branch,
                                                       .asked = s.asked,
                                                       .tokens = s.tokens,
                                                       .processor = s.processor,
                                                       .cached_tokens = s.cached_tokens,
                                                       .started = true,
                                                       .scored = s.prompt_tokens()});
    if (static_cast<int>(running.size()) < rows.forks) {
      sibling->cached.emplace(s.cached->fork());
      running.push_back(sibling.get());
      scheduler_.add_running(std::move(sibling));
    } else {
      scheduler_.add(std::move(sibling));
    }
  }
  return running;
}

// Takes over what was sampled: one token, and one more for every draft that equals it.
void Engine::append(Sequence& s, std::span<const int32_t> drafts, int first_logit, const Outcome& outcome) {
  Event event{.request = s.request, .branch = s.branch, .cached_tokens = s.cached_tokens};
  const int64_t start = static_cast<int64_t>(s.tokens.size()) - 1;
  std::string error;
  FinishReason reason = FinishReason::kNone;
  for (size_t i = 0; i <= drafts.size(); ++i) {
    const int at = first_logit + static_cast<int>(i);
    const Runner::Sampled& got = outcome.sampled[at];
    if (std::isnan(got.log_norm)) {
      reason = FinishReason::kError;
      error = fmt::format("the logits at position {} are not numbers; the model or its weights are damaged",
                          s.tokens.size() - 1);
      break;
    }
    event.tokens.push_back(describe(s, at, outcome));
    s.tokens.push_back(got.token);
    s.cached->append(got.token);
    s.processor.accept(got.token);
    reason = reason_to_finish(s);
    if (reason != FinishReason::kNone || i == drafts.size() || got.token != drafts[i]) break;
  }
  const int64_t kept = static_cast<int64_t>(event.tokens.size());
  stats_.generated_tokens += kept;
  if (!drafts.empty()) {
    stats_.draft_tokens += static_cast<int64_t>(drafts.size());
    stats_.accepted_draft_tokens += std::max<int64_t>(0, kept - 1);
    if (reason != FinishReason::kError) {
      s.cached->cache().set_length(start + kept);
      s.cached->stepped();
    }
  }
  if (s.answer_tokens() == kept && s.branch == 0) stats_.cached_tokens += s.cached_tokens;
  if (kept > 0) events_.push_back(std::move(event));
  if (reason != FinishReason::kNone) finish(s, reason, error);
}

std::span<const float> Engine::logits_row(int logit, const Outcome& outcome) const {
  const size_t vocab = runner_.config().vocab_size;
  return outcome.logits.subspan(logit * vocab, vocab);
}

// Log-probabilities of the model's own distribution. Without the logits `token` is the one that was drawn.
GeneratedToken Engine::raw(int logit, int32_t token, int alternatives, const Outcome& outcome) const {
  const Runner::Sampled& sampled = outcome.sampled[logit];
  if (outcome.logits.empty()) return {.id = token, .logprob = sampled.logprob};
  const std::span<const float> row = logits_row(logit, outcome);
  return {.id = token,
          .logprob = row[token] - sampled.log_norm,
          .top = top_logprobs(row, sampled.log_norm, alternatives)};
}

// A token of an answer, as its request wants it.
GeneratedToken Engine::describe(const Sequence& s, int logit, const Outcome& outcome) const {
  const Request& asked = *s.asked;
  const int32_t token = outcome.sampled[logit].token;
  if (!asked.processed_logprobs) return raw(logit, token, asked.top_logprobs, outcome);
  const std::vector<float> logprobs = processed_logprobs(logits_row(logit, outcome), s.processor,
                                                         params_of(asked, s.branch), runner_.lanes());
  return {.id = token, .logprob = logprobs[token], .top = top_logprobs(logprobs, 0, asked.top_logprobs)};
}

FinishReason Engine::reason_to_finish(const Sequence& s) const {
  const auto& stops = s.asked->stop_ids;
  if (std::find(stops.begin(), stops.end(), s.tokens.back()) != stops.end()) return FinishReason::kStop;
  return reaches_length(s, static_cast<int64_t>(s.tokens.size())) ? FinishReason::kLength
                                                                  : FinishReason::kNone;
}

bool Engine::reaches_length(const Sequence& s, int64_t tokens) const {
  const int64_t limit = runner_.config().max_position_embeddings;
  return tokens >= s.prompt_tokens() + s.asked->max_tokens || (limit > 0 && tokens >= limit);
}

// A step under way computes a token of a sequence that ends: the row is nobody's.
void Engine::drop_ahead(Sequence& s) {
  for (StepPlan& plan : under_way_) {
    for (ScheduledRows& rows : plan.rows) {
      if (rows.sequence != &s) continue;
      s.cached->cache().set_length(rows.start);
      rows.sequence = nullptr;
      ++stats_.dropped_tokens;
    }
  }
  // Nobody waits for a step all of whose rows are nobody's.
  std::erase_if(under_way_, [&](const StepPlan& plan) {
    for (const ScheduledRows& rows : plan.rows) {
      if (rows.sequence) return false;
    }
    runner_.forget();
    return true;
  });
}

// Tells the caller, for the siblings that never started too, and leaves what was computed in the tree.
void Engine::finish(Sequence& s, FinishReason reason, const std::string& error) {
  std::vector<int> branches = s.siblings;
  branches.insert(branches.begin(), s.branch);
  for (int branch : branches) {
    events_.push_back({.request = s.request,
                       .branch = branch,
                       .cached_tokens = s.cached_tokens,
                       .finish = reason,
                       .error = error});
  }
  drop_ahead(s);
  if (reason == FinishReason::kError) {
    stats_.failed += static_cast<int64_t>(branches.size());
  } else if (s.cached) {
    s.cached->leave();
  }
  scheduler_.remove(s);
}

// What a step that broke off has left of its sequences is not to be trusted.
void Engine::fail_all(const std::string& error) {
  std::vector<Sequence*> running;
  scheduler_.for_each_running([&](Sequence& s) { running.push_back(&s); });
  under_way_.clear();
  while (runner_.open_draws() > 0) runner_.forget();
  for (Sequence* s : running) finish(*s, FinishReason::kError, error);
}

// Every row is held by whom it should be: the running sequences and the tree.
void Engine::check_cache() const {
  try {
    std::vector<int64_t> references(runner_.pool().rows(), 0);
    prefixes_->check_integrity(references);
    scheduler_.for_each_running([&](Sequence& s) { s.cached->cache().count_references(references); });
    runner_.pool().check_integrity(references);
  } catch (const Error& e) {
    if (!idle()) throw;
    options_.on_fault(e.what());
  }
}

}  // namespace perigee
