#include "properties/traffic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <random>

#include "support/models.h"

namespace perigee::test {

namespace {

constexpr int kLongest = 150;  // prompt and answer

using Random = std::mt19937_64;
int pick(Random& random, int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); }

}  // namespace

Request random_request(Random& random, Prompts& prompts, int vocab) {
  Request r;
  const int kind = prompts.empty() ? 0 : pick(random, 0, 3);  // new, repeated, gone on from, parting
  if (kind > 0) r.prompt = prompts[random() % prompts.size()];
  if (kind == 3) r.prompt.resize(pick(random, 1, static_cast<int>(r.prompt.size())));
  if (kind != 1) {
    for (int32_t t : random_tokens(pick(random, 1, 70), random() % 6, vocab))
      r.prompt.push_back(t == kDamagedToken ? t + 1 : t);
  }
  r.max_tokens = pick(random, 1, 12);
  r.prompt.resize(std::min<size_t>(r.prompt.size(), kLongest - r.max_tokens));
  if (random() % 25 == 0) r.prompt[random() % r.prompt.size()] = kDamagedToken;
  prompts.push_back(r.prompt);
  r.sampling = {.temperature = random() % 4 ? 1.0f : 0.0f,
                .top_p = random() % 2 ? 1.0f : 0.9f,
                .top_k = random() % 2 ? 0 : 20,
                .seed = random() % 1000};
  if (random() % 3 == 0) r.logits.repetition_penalty = 1.2f;
  if (random() % 4 == 0) r.logits.min_p = 0.05f;
  if (random() % 4 == 0)
    r.stop_ids = {static_cast<int32_t>(random() % vocab), static_cast<int32_t>(random() % vocab)};
  r.n = random() % 4 ? 1 : pick(random, 2, 4);
  r.top_logprobs = random() % 4 ? 0 : 2;
  if (random() % 5 == 0) r.prompt_logprobs = 1;
  r.priority = random() % 4 ? 0 : pick(random, -1, 1);
  if (random() % 4 == 0) r.salt = "other";
  return r;
}

TrafficScript random_traffic(uint64_t seed, int actions, int vocab) {
  Random random(seed);
  TrafficScript script{.seed = seed};
  script.slots = pick(random, 1, 5);
  script.scheduler.max_num_seqs = pick(random, 1, 5);
  script.scheduler.max_num_batched_tokens = pick(random, script.scheduler.max_num_seqs, 90);
  script.scheduler.max_drafts = random() % 3 ? pick(random, 1, 7) : 0;
  script.tree = {.checkpoint_share = random() % 2 ? 0.7 : 0.25, .checkpoint_spacing = 64, .debug = true};
  script.spare_rows = random() % 2 ? pick(random, 0, 8) : pick(random, 20, 60);
  script.memory_rows = random() % 2 ? pick(random, 4, 40) : 0;
  script.file_rows = random() % 2 ? pick(random, 4, 40) : 0;
  Prompts prompts;
  int submitted = 0;
  for (int i = 0; i < actions; ++i) {
    TrafficAction a;
    if (const int what = pick(random, 0, 9); what < 5) {
      a.kind = TrafficAction::Kind::kSubmit;
      a.request = random_request(random, prompts, vocab);
      ++submitted;
    } else if (what < 6 && submitted > 0) {
      a.kind = TrafficAction::Kind::kCancel;
      a.target = pick(random, std::max(0, submitted - 4), submitted - 1);
      a.branch = pick(random, -1, 2);
    } else {
      a.count = pick(random, 1, 20);
    }
    script.actions.push_back(std::move(a));
  }
  return script;
}

std::string to_string(const TrafficScript& s) {
  std::string out = fmt::format(
      "seed {} · max_num_seqs {} · max_num_batched_tokens {} · max_drafts {} · look_ahead {} · "
      "checkpoint_share {} · spare rows {} · slots {} · rows in tiers {} + {}\n",
      s.seed, s.scheduler.max_num_seqs, s.scheduler.max_num_batched_tokens, s.scheduler.max_drafts,
      s.scheduler.look_ahead.value_or(false), s.tree.checkpoint_share, s.spare_rows, s.slots, s.memory_rows,
      s.file_rows);
  for (const TrafficAction& a : s.actions) {
    if (a.kind == TrafficAction::Kind::kStep) {
      out += fmt::format("step ×{}\n", a.count);
    } else if (a.kind == TrafficAction::Kind::kCancel) {
      out += fmt::format("cancel request {} branch {}\n", a.target, a.branch);
    } else {
      const Request& r = a.request;
      out += fmt::format(
          "submit {} tokens [{}], max_tokens {}, temperature {}, top_p {}, top_k {}, seed {}, repetition {}, "
          "min_p {}, "
          "stops [{}], n {}, top_logprobs {}, prompt_logprobs {}, priority {}, salt \"{}\"\n",
          r.prompt.size(), fmt::join(r.prompt, " "), r.max_tokens, r.sampling.temperature, r.sampling.top_p,
          r.sampling.top_k, r.sampling.seed, r.logits.repetition_penalty, r.logits.min_p,
          fmt::join(r.stop_ids, " "), r.n, r.top_logprobs, r.prompt_logprobs, r.priority, r.salt);
    }
  }
  return out;
}

TrafficScript shrink(TrafficScript script, const std::function<bool(const TrafficScript&)>& fails) {
  for (size_t run = std::max<size_t>(1, script.actions.size() / 2); run > 0; run /= 2) {
    for (size_t at = 0; at < script.actions.size();) {
      TrafficScript smaller = script;
      const size_t end = std::min(at + run, smaller.actions.size());
      int renumber = 0;  // cancellations name requests by number
      for (size_t i = at; i < end; ++i) renumber += smaller.actions[i].kind == TrafficAction::Kind::kSubmit;
      smaller.actions.erase(smaller.actions.begin() + at, smaller.actions.begin() + end);
      for (size_t i = at; i < smaller.actions.size(); ++i)
        smaller.actions[i].target = std::max(0, smaller.actions[i].target - renumber);
      if (fails(smaller)) {
        script = std::move(smaller);
      } else {
        at += run;
      }
    }
  }
  return script;
}

Drafter random_drafter(uint64_t seed, int vocab, const std::vector<std::vector<int32_t>>& answers) {
  auto random = std::make_shared<Random>(seed);
  return [random, vocab, &answers](std::span<const int32_t> tokens, int most) {
    std::vector<int32_t> drafts;
    const int count = pick(*random, 0, most);
    const std::vector<int32_t>* known = nullptr;
    for (const auto& a : answers) {
      if (a.size() > tokens.size() && std::equal(tokens.begin(), tokens.end(), a.begin())) known = &a;
    }
    for (int i = 0; i < count; ++i) {
      const size_t at = tokens.size() + i;
      const bool right = known && at < known->size() && (*random)() % 4;
      drafts.push_back(right ? (*known)[at] : static_cast<int32_t>((*random)() % vocab));
    }
    return drafts;
  };
}

}  // namespace perigee::test
