// What a flag's value may be: decimal numbers in a range, and text that is not empty. Stricter than CLI11's
// own, which takes nan for a number, -1 for an unsigned one, and 010 for eight.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace perigee::cli {

// A whole number from low to high.
inline CLI::Validator whole_number(uint64_t low, uint64_t high = std::numeric_limits<uint64_t>::max()) {
  const auto check = [low, high](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value < low || value > high)
      return fmt::format("'{}' is not a whole number from {} to {}", text, low, high);
    text = std::to_string(value);  // no leading zeros, which would make it octal
    return "";
  };
  return CLI::Validator(check, high < std::numeric_limits<uint64_t>::max()
                                   ? fmt::format("in [{} - {}]", low, high)
                                   : fmt::format("from {}", low));
}

// One of these whole numbers.
inline CLI::Validator one_of(const std::vector<uint64_t>& values) {
  const std::string list = fmt::format("{}", fmt::join(values, ", "));
  const auto check = [values, list](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || std::find(values.begin(), values.end(), value) == values.end())
      return fmt::format("'{}' is not one of {}", text, list);
    text = std::to_string(value);
    return "";
  };
  return CLI::Validator(check, "in {" + list + "}");
}

// A finite number from low to high.
inline CLI::Validator number(double low, double high) {
  const auto check = [low, high](std::string& text) -> std::string {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || !(value >= low && value <= high))
      return fmt::format("'{}' is not a number from {} to {}", text, low, high);
    return "";
  };
  return CLI::Validator(check, fmt::format("in [{} - {}]", low, high));
}

inline CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? std::string("is empty") : std::string(); }, "");
}

}  // namespace perigee::cli
