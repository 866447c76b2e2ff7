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

// A number of tokens as vLLM takes it: whole, or with a unit, of a thousand in lower case (4k, 25.6k, 1m) and
// of 1,024 in upper case (4K, 1M). Words of `automatic` become 0.
inline CLI::Validator token_count(uint64_t low, uint64_t high, std::vector<std::string> automatic = {}) {
  const auto check = [=](std::string& text) -> std::string {
    if (std::find(automatic.begin(), automatic.end(), text) != automatic.end()) {
      text = "0";
      return "";
    }
    constexpr std::string_view kUnits = "kmgKMG";
    const size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
    if (unit == std::string_view::npos) return whole_number(low, high)(text);
    double count = 0;
    const char* end = text.data() + text.size() - 1;
    const auto [stop, error] = std::from_chars(text.data(), end, count, std::chars_format::fixed);
    for (size_t power = 0; power <= unit % 3; ++power) count *= unit < 3 ? 1000 : 1024;
    if (error != std::errc() || stop != end || !(count >= static_cast<double>(low)) ||
        !(count <= static_cast<double>(high)))
      return fmt::format("'{}' is not a number of tokens from {} to {}, e.g. 4096, 4k or 4K", text, low,
                         high);
    text = std::to_string(static_cast<uint64_t>(count));
    return "";
  };
  return CLI::Validator(check, fmt::format("from {}", low));
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
