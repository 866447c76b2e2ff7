#include "engine/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace perigee {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

void check_range(const char* name, float value, float low, float high) {
  if (!(value >= low && value <= high))
    fail(ErrorCode::kBadRequest, "{} {}: must be between {} and {}", name, value, low, high);
}

void check_id(const char* name, int32_t id, int vocab) {
  if (id < 0 || id >= vocab) {
    fail(ErrorCode::kBadRequest, "{}: token id {} is outside the vocabulary of {}", name, id, vocab);
  }
}

void insert_sorted(std::vector<int32_t>& set, int32_t token) {
  const auto at = std::lower_bound(set.begin(), set.end(), token);
  if (at == set.end() || *at != token) set.insert(at, token);
}

// No token but these; an empty list leaves all.
void keep_only(std::span<float> z, const std::vector<int32_t>& ids) {
  if (ids.empty()) return;
  std::vector<std::pair<int32_t, float>> kept;
  for (int32_t id : ids) kept.emplace_back(id, z[id]);
  std::fill(z.begin(), z.end(), kOut);
  for (const auto& [id, logit] : kept) z[id] = logit;
}

}  // namespace

void check_logits_params(const LogitsParams& p, int vocab) {
  if (!(p.repetition_penalty > 0.0f && std::isfinite(p.repetition_penalty)))
    fail(ErrorCode::kBadRequest, "repetition_penalty {}: must be a number above 0", p.repetition_penalty);
  check_range("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f);
  check_range("presence_penalty", p.presence_penalty, -2.0f, 2.0f);
  check_range("min_p", p.min_p, 0.0f, 1.0f);
  for (const auto& [id, bias] : p.logit_bias) {
    check_id("logit_bias", id, vocab);
    check_range("logit_bias", bias, -100.0f, 100.0f);
  }
  for (int32_t id : p.allowed_ids) check_id("allowed_token_ids", id, vocab);
  for (const auto& word : p.bad_words) {
    if (word.empty()) fail(ErrorCode::kBadRequest, "bad_words: an empty word; leave it out");
    for (int32_t id : word) check_id("bad_words", id, vocab);
  }
  if (p.min_tokens < 0) fail(ErrorCode::kBadRequest, "min_tokens {}: must be 0 or more", p.min_tokens);
}

LogitsProcessor::LogitsProcessor(LogitsParams params, std::vector<int32_t> stop_ids,
                                 std::span<const int32_t> prompt)
    : params_(std::move(params)), stop_ids_(std::move(stop_ids)) {
  const LogitsParams& p = params_;
  if (p.repetition_penalty != 1.0f) {
    seen_.assign(prompt.begin(), prompt.end());
    std::sort(seen_.begin(), seen_.end());
    seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
  }
  active_ = p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f ||
            p.min_p > 0.0f || !p.logit_bias.empty() || !p.allowed_ids.empty() || !p.bad_words.empty() ||
            p.min_tokens > 0 || p.constraint;
}

void LogitsProcessor::accept(int32_t token) {
  if (!active_) return;
  answer_.push_back(token);
  if (params_.constraint) params_.constraint = params_.constraint->after(token);
  if (params_.repetition_penalty != 1.0f) insert_sorted(seen_, token);
  const auto at = std::lower_bound(count_.begin(), count_.end(), std::pair(token, 0));
  if (at != count_.end() && at->first == token) {
    ++at->second;
  } else {
    count_.insert(at, {token, 1});
  }
}

void LogitsProcessor::restrict(std::span<float> z) const {
  keep_only(z, params_.allowed_ids);
  if (params_.constraint) keep_only(z, params_.constraint->allowed());
  for (const auto& word : params_.bad_words) {  // its last token is out where the rest stands already
    const size_t rest = word.size() - 1;
    if (answer_.size() >= rest && std::equal(word.begin(), word.end() - 1, answer_.end() - rest)) {
      z[word.back()] = kOut;
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) z[id] += bias;
  if (static_cast<int>(answer_.size()) < params_.min_tokens) {
    for (int32_t id : stop_ids_) z[id] = kOut;
  }
}

void LogitsProcessor::penalise(std::span<float> z) const {
  for (int32_t id : seen_) {
    z[id] = z[id] > 0.0f ? z[id] / params_.repetition_penalty : z[id] * params_.repetition_penalty;
  }
  for (const auto& [id, count] : count_) {
    z[id] -= params_.frequency_penalty * static_cast<float>(count);
    z[id] -= params_.presence_penalty;
  }
}

void LogitsProcessor::apply(std::span<float> z, float temperature) const {
  restrict(z);
  penalise(z);
  if (params_.min_p > 0.0f && temperature >= kGreedyTemperature) {
    // p ≥ min_p·p_max is z ≥ z_max + T·ln(min_p), whatever the normaliser.
    float top = kOut;
    for (float x : z) top = x > top ? x : top;
    const float least = top + temperature * static_cast<float>(std::log(double{params_.min_p}));
    for (float& x : z) {
      if (x < least) x = kOut;
    }
  }
}

}  // namespace perigee
