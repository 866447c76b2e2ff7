// Test builds can break one rule of the numerics contract at a time, so that the property tests prove they
// would notice. In other builds rule_broken() is constant false and the broken branches vanish.
#pragma once

#include <optional>
#include <string_view>

namespace perigee {

enum class Rule { kNone, kRow, kSegment, kLane, kKey, kPosition, kSelection, kStoredForm, kRandom };

#ifdef PERIGEE_TEST_HOOKS
inline Rule g_broken_rule = Rule::kNone;
inline bool rule_broken(Rule rule) { return g_broken_rule == rule; }
#else
constexpr bool rule_broken(Rule) { return false; }
#endif

// "row" → Rule::kRow, …; nothing for an unknown name.
inline std::optional<Rule> parse_rule(std::string_view name) {
  constexpr std::pair<std::string_view, Rule> kNames[] = {{"none", Rule::kNone},
                                                          {"row", Rule::kRow},
                                                          {"segment", Rule::kSegment},
                                                          {"lane", Rule::kLane},
                                                          {"key", Rule::kKey},
                                                          {"position", Rule::kPosition},
                                                          {"selection", Rule::kSelection},
                                                          {"stored-form", Rule::kStoredForm},
                                                          {"random", Rule::kRandom}};
  for (const auto& [text, rule] : kNames) {
    if (text == name) return rule;
  }
  return std::nullopt;
}

}  // namespace perigee
