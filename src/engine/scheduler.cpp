#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace perigee {

namespace {

// Whose turn it is: lower comes first, and makes room last.
auto order(const Sequence& s) { return std::tuple(s.asked->priority, s.request, s.branch); }

void insert_in_order(std::list<std::unique_ptr<Sequence>>& queue, std::unique_ptr<Sequence> sequence) {
  auto at = queue.end();
  while (at != queue.begin() && order(*sequence) < order(**std::prev(at))) --at;
  queue.insert(at, std::move(sequence));
}

// Logits of every prompt row cost vocabulary × 4 bytes each.
constexpr int64_t kMostScoredTokens = 64;

// Fewer tokens than this are computed sooner than waited for.
constexpr int64_t kWorthWaiting = 64;

int64_t tokens_left(const Sequence& s) { return s.cached->prompt_tokens() - s.cached->cache().length(); }

}  // namespace

Scheduler::Scheduler(CachePool& pool, PrefixTree* prefixes, SchedulerOptions options)
    : pool_(pool), prefixes_(prefixes), options_(std::move(options)) {
  const auto& o = options_;
  if (o.max_num_seqs < 1) fail(ErrorCode::kUsage, "max_num_seqs {} must be at least 1", o.max_num_seqs);
  if (o.max_num_batched_tokens < 1)
    fail(ErrorCode::kUsage, "max_num_batched_tokens {} must be at least 1", o.max_num_batched_tokens);
  if (o.max_num_batched_tokens < o.max_num_seqs) {
    fail(ErrorCode::kUsage,
         "max_num_batched_tokens {} is less than max_num_seqs {}, so that not all could decode in one step; "
         "raise the one or lower the other",
         o.max_num_batched_tokens, o.max_num_seqs);
  }
  if (o.max_drafts < 0 || o.max_drafts > kMostDrafts)
    fail(ErrorCode::kUsage, "max_drafts {} must be in [0, {}]", o.max_drafts, kMostDrafts);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  insert_in_order(waiting_, std::move(sequence));
  full_ = false;  // it may be the first now
}

void Scheduler::add_running(std::unique_ptr<Sequence> sequence) {
  insert_in_order(running_, std::move(sequence));
}

std::unique_ptr<Sequence> Scheduler::remove(Sequence& sequence) {
  full_ = false;
  for (Queue* queue : {&running_, &waiting_}) {
    const auto at =
        std::find_if(queue->begin(), queue->end(), [&](const auto& s) { return s.get() == &sequence; });
    if (at == queue->end()) continue;
    std::unique_ptr<Sequence> out = std::move(*at);
    queue->erase(at);
    return out;
  }
  fail(ErrorCode::kInternal, "Scheduler::remove: request {} is not here", sequence.request);
}

int64_t Scheduler::waiting() const {
  int64_t branches = 0;
  for (const auto& s : waiting_) branches += 1 + std::ssize(s->siblings);
  return branches;
}

std::vector<Sequence*> Scheduler::find(RequestId request) const {
  std::vector<Sequence*> out;
  for (const Queue* queue : {&running_, &waiting_}) {
    for (const auto& s : *queue) {
      if (s->request == request) out.push_back(s.get());
    }
  }
  return out;
}

void Scheduler::for_each_running(const std::function<void(Sequence&)>& visit) const {
  for (const auto& s : running_) visit(*s);
}

// --- Admission

// Rows that come from the store first have to arrive.
bool Scheduler::fetching(Sequence& s) {
  if (!prefixes_) return false;
  if (!std::exchange(s.looked_up, true)) s.ticket = prefixes_->fetch({.salt = s.asked->salt}, s.tokens);
  if (s.ticket && options_.wait_for_copies) prefixes_->wait();
  return s.ticket && !prefixes_->arrived(s.ticket);
}

// A running prompt has yet to compute much of what this one begins with: it is asked to leave a checkpoint
// where the two part.
bool Scheduler::prefix_under_way(const Sequence& s) {
  if (!prefixes_ || s.scores_prompt()) return false;
  for (const auto& r : running_) {
    if (!r->cached->prefilling() || r->asked->salt != s.asked->salt) continue;
    const int64_t most = std::min(std::ssize(s.tokens), std::ssize(r->tokens)) - 1;
    const auto [part, unused] = std::mismatch(s.tokens.begin(), s.tokens.begin() + most, r->tokens.begin());
    const int64_t shared = (part - s.tokens.begin()) / kChunk * kChunk;
    const int64_t saved = shared - r->cached->cached_tokens();  // what r found, this one finds too
    if (saved < kWorthWaiting || shared <= r->cached->cache().length()) continue;
    r->cached->plan_checkpoint(shared);
    return true;
  }
  return false;
}

// Each running sequence has a slot, or takes one in its first step.
int64_t Scheduler::places() const {
  const int64_t most = options_.max_num_seqs;
  return (pool_.plan().slot_bytes() > 0 ? std::min(most, pool_.slots()) : most) - running();
}

// All that is left of its prompt, and a state for the tree, beside what running prompts still need.
bool Scheduler::fits(const CachedSequence& cached) const {
  int64_t rows = cached.rows_to_finish_prompt();
  for (const auto& s : running_) {
    if (s->cached->prefilling()) rows += s->cached->rows_to_finish_prompt();
  }
  return rows <= pool_.free_rows() ||
         rows <= pool_.free_rows() + (prefixes_ ? prefixes_->evictable_rows() : 0);
}

bool Scheduler::try_admit(Sequence& s) {
  if (places() < 1) return false;
  const int64_t reusable = s.scores_prompt() ? s.scored : static_cast<int64_t>(s.tokens.size());
  s.cached.emplace(pool_, prefixes_, PrefixScope{.salt = s.asked->salt}, s.tokens, reusable);
  // Alone it fits: submit() saw to that.
  if (!running_.empty() && !fits(*s.cached)) {
    s.cached.reset();
    return false;
  }
  if (!std::exchange(s.started, true)) s.cached_tokens = s.cached->cached_tokens();
  return true;
}

void Scheduler::admit() {
  if (running_.empty()) full_ = false;
  for (auto at = waiting_.begin(); at != waiting_.end() && !full_;) {
    Sequence& s = **at;
    if (fetching(s) || (places() > 0 && prefix_under_way(s))) {
      ++at;
      continue;
    }
    while (!try_admit(s) && !full_) {
      if (!running_.empty() && running_.back()->asked->priority > s.asked->priority) {
        preempt_last();
      } else {
        full_ = true;
      }
    }
    if (full_) return;
    s.looked_up = false;
    s.ticket = 0;
    std::unique_ptr<Sequence> admitted = std::move(*at);
    at = waiting_.erase(at);
    insert_in_order(running_, std::move(admitted));
  }
}

// What it computed stays in the tree; it will be a prompt of all its tokens.
void Scheduler::preempt_last() {
  std::unique_ptr<Sequence> s = std::move(running_.back());
  running_.pop_back();
  s->cached->leave();
  s->cached.reset();
  ++preemptions_;
  insert_in_order(waiting_, std::move(s));
}

// --- One step

// What a sequence shall compute, if rows can be found.
struct Scheduler::Wish {
  Sequence* sequence = nullptr;
  int64_t count = 0, undecided = 0;  // tokens, the last of which may be dropped again
  std::vector<int32_t> drafts = {};
};

std::vector<int32_t> Scheduler::drafts_for(const Sequence& s, int64_t most) const {
  most = std::min({most, int64_t{options_.max_drafts}, s.asked->max_tokens - s.answer_tokens() - 1});
  if (!options_.drafter || most < 1) return {};
  std::vector<int32_t> drafts = options_.drafter(s.tokens, static_cast<int>(most));
  check(static_cast<int64_t>(drafts.size()) <= most, "a drafter gives no more than it is asked for");
  return drafts;
}

// In the order of running_, so that whoever makes room for one comes after it.
std::vector<Scheduler::Wish> Scheduler::wishes() const {
  int64_t decoding = 0, left = 0;  // left: prompt tokens to compute, of all
  const Sequence* shortest = nullptr;
  for (const auto& s : running_) {
    if (!s->cached->prefilling()) {
      ++decoding;
      continue;
    }
    left += tokens_left(*s);
    if (!shortest || tokens_left(*s) < tokens_left(*shortest)) shortest = s.get();
  }
  std::vector<Wish> wishes;
  int64_t budget = options_.max_num_batched_tokens - decoding;
  int64_t draft_budget = shortest ? budget / 2 : budget;
  for (const auto& s : running_) {
    if (s->cached->prefilling()) continue;
    std::vector<int32_t> drafts = drafts_for(*s, draft_budget);
    const int64_t n = static_cast<int64_t>(drafts.size());
    draft_budget -= n;
    budget -= n;
    wishes.push_back({.sequence = s.get(), .count = 1 + n, .undecided = n, .drafts = std::move(drafts)});
  }
  if (!shortest) return wishes;

  // Half for the shortest, and more where the others need less; what is left in order.
  const int64_t others = left - tokens_left(*shortest);
  int64_t share = std::min(tokens_left(*shortest), std::max(budget / 2, budget - others));
  std::vector<Wish> prompts;
  for (const auto& s : running_) {
    if (!s->cached->prefilling()) continue;
    int64_t quota = budget - share;
    if (s.get() == shortest) quota += std::exchange(share, 0);
    if (s->scores_prompt()) quota = std::min(quota, kMostScoredTokens);
    if (quota < 1) continue;
    const CachedSequence::PromptStep step = s->cached->next_prompt_step(quota);
    budget -= step.count;
    prompts.push_back({.sequence = s.get(), .count = step.count, .undecided = step.undecided});
  }
  std::vector<Wish> all(wishes.size() + prompts.size());
  std::merge(std::make_move_iterator(wishes.begin()), std::make_move_iterator(wishes.end()),
             std::make_move_iterator(prompts.begin()), std::make_move_iterator(prompts.end()), all.begin(),
             [](const Wish& a, const Wish& b) { return order(*a.sequence) < order(*b.sequence); });
  return all;
}

// False when the sequence itself had to make room for those before it.
bool Scheduler::make_room(const Wish& wish) {
  while (!wish.sequence->cached->make_room(wish.count, wish.undecided)) {
    check(running_.size() > 1, "Scheduler: a sequence alone has room");
    const bool itself = running_.back().get() == wish.sequence;
    preempt_last();
    if (itself) return false;
  }
  return true;
}

void Scheduler::schedule(StepPlan& plan, Wish wish) {
  Sequence& s = *wish.sequence;
  if (!s.cached || !make_room(wish)) return;  // preempted
  const int64_t start = s.cached->cache().length(), total = static_cast<int64_t>(s.tokens.size());
  ScheduledRows rows{.sequence = &s,
                     .request = s.request,
                     .branch = s.branch,
                     .start = start,
                     .tokens = static_cast<int>(wish.count),
                     .samples = start + wish.count >= total,
                     .drafts = std::move(wish.drafts),
                     .first_logit = static_cast<int>(plan.batch.logit_rows.size())};
  if (s.scores_prompt()) {
    rows.logits = rows.tokens;
  } else if (rows.samples) {
    rows.logits = 1 + static_cast<int>(rows.drafts.size());
  }
  std::vector<int32_t> tokens(s.tokens.begin() + start,
                              s.tokens.begin() + std::min(start + wish.count, total));
  tokens.insert(tokens.end(), rows.drafts.begin(), rows.drafts.end());
  plan.batch.add(s.cached->cache(), tokens, static_cast<int>(wish.undecided), rows.logits);
  plan.rows.push_back(std::move(rows));
}

// Branches start here as far as there are slots; the engine lets the others wait.
void Scheduler::plan_forks(StepPlan& plan) const {
  int64_t room = places();
  for (ScheduledRows& rows : plan.rows) {
    if (!rows.samples) continue;
    rows.forks = static_cast<int>(std::clamp<int64_t>(room, 0, std::ssize(rows.sequence->siblings)));
    room -= rows.forks;
    rows.first_fork_logit = static_cast<int>(plan.batch.logit_rows.size());
    const int last = plan.batch.logit_rows[rows.first_logit + rows.logits - 1];
    plan.batch.logit_rows.insert(plan.batch.logit_rows.end(), rows.forks, last);
  }
}

StepPlan Scheduler::ahead(const StepPlan& before, const std::function<bool(const Sequence&)>& goes_on) const {
  const bool drafts = options_.drafter && options_.max_drafts > 0;
  if (!options_.look_ahead.value_or(false) || drafts || (!waiting_.empty() && !full_)) return {};
  if (prefixes_ && options_.wait_for_copies) prefixes_->wait();
  std::vector<const ScheduledRows*> going;
  int64_t decoding = 0, needed = 0;
  for (const ScheduledRows& rows : before.rows) {
    if (!rows.sequence) continue;  // ended since
    const Sequence& s = *rows.sequence;
    if (rows.start < s.cached->prompt_tokens() || s.processor.active()) return {};
    ++decoding;
    if (!goes_on(s)) continue;
    going.push_back(&rows);
    const SequenceCache& cache = s.cached->cache();
    needed += cache.rows_needed(cache.length() + 1, cache.length());
  }
  if (decoding != running() || needed > pool_.free_rows()) return {};
  StepPlan plan;
  for (const ScheduledRows* rows : going) {
    SequenceCache& cache = rows->sequence->cached->cache();
    const int first_logit = static_cast<int>(plan.batch.logit_rows.size());
    plan.rows.push_back({.sequence = rows->sequence,
                         .request = rows->request,
                         .branch = rows->branch,
                         .start = cache.length(),
                         .tokens = 1,
                         .samples = true,
                         .first_logit = first_logit,
                         .logits = 1});
    const int32_t token = drawn_token(rows->first_logit);
    plan.batch.add(cache, std::span(&token, 1), 1, 1);
  }
  return plan;
}

StepPlan Scheduler::next() {
  StepPlan plan;
  if (prefixes_ && options_.wait_for_copies) prefixes_->wait();
  while (plan.empty() && !idle()) {
    admit();
    if (running_.empty()) {  // all wait for rows from the store
      prefixes_->wait();
      continue;
    }
    for (Wish& wish : wishes()) schedule(plan, std::move(wish));
  }
  plan_forks(plan);
  return plan;
}

}  // namespace perigee
