#include "cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/read_file.h"
#include "base/spelling.h"
#include "text/json_text.h"
#ifdef PERIGEE_YAML
#include <yaml-cpp/yaml.h>
#endif

namespace perigee::cli {

namespace {

namespace json = boost::json;

#ifdef PERIGEE_YAML
json::value json_of(const YAML::Node& node, int depth = 0) {
  constexpr int kDeepest = 64;
  if (depth > kDeepest) throw std::runtime_error("it nests too deep");
  if (node.IsSequence()) {
    json::array out;
    for (const YAML::Node& one : node) out.push_back(json_of(one, depth + 1));
    return out;
  }
  if (node.IsMap()) {
    json::object out;
    for (const auto& field : node) {
      const std::string key = field.first.as<std::string>();
      if (out.contains(key)) throw std::runtime_error("'" + key + "' stands there twice");
      out[key] = json_of(field.second, depth + 1);
    }
    return out;
  }
  if (node.IsNull() || !node.IsDefined()) return nullptr;
  // A quoted text is a text, whatever it reads like.
  if (node.Tag() == "!") return json::string(node.Scalar());
  bool truth = false;
  if (YAML::convert<bool>::decode(node, truth)) return truth;
  const auto number = parse_json(node.Scalar());
  return number && number->is_number() ? *number : json::value(json::string(node.Scalar()));
}

json::value read_config(const std::string& text) { return json_of(YAML::Load(text)); }
#else
json::value read_config(const std::string& text) {
  const auto value = parse_json(text);
  if (!value) throw std::runtime_error("not JSON, and this build reads no YAML (yaml-cpp was not there)");
  return *value;
}
#endif

std::string name_of(const std::string& arg) { return arg.substr(0, arg.find('=')); }

// A value as the command line would have it.
std::string text_of(const json::value& value) {
  return value.is_string() ? std::string(value.get_string()) : json_text(value, JsonSpacing::kCompact);
}

bool takes_values(const CLI::Option& option) {
  return option.get_expected_max() > 0 && option.get_items_expected_max() > 0;
}

// What the arguments give, as CLI11 will see it: options, and whether there is a MODEL.
struct Given {
  std::set<const CLI::Option*> options;
  bool model = false;
};

Given given_by(const CLI::App& serve, const std::vector<std::string>& args) {
  Given given;
  for (size_t i = 1; i < args.size(); ++i) {
    if (!args[i].starts_with('-')) {
      given.model = true;
      continue;
    }
    const CLI::Option* option = serve.get_option_no_throw(name_of(args[i]));
    if (!option) continue;  // its error comes later
    given.options.insert(option);
    if (!takes_values(*option) || args[i].find('=') != std::string::npos) continue;
    for (int taken = 0; taken < option->get_items_expected_max() && i + 1 < args.size(); ++taken)
      if (taken > 0 && args[i + 1].starts_with('-'))
        break;
      else
        ++i;
  }
  return given;
}

[[noreturn]] void reject_key(const CLI::App& serve, const std::string& file, const std::string& key) {
  std::vector<std::string> known;
  for (const CLI::Option* option : serve.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  const std::string best = nearest_word(key, known, key.size() / 2);
  fail(ErrorCode::kUsage, "--config {}: '{}' is no flag of serve{}", file, key,
       best.empty() ? "; see perigee serve --help" : "; did you mean " + best + "?");
}

}  // namespace

std::vector<std::string> with_config_file(const CLI::App& serve, std::vector<std::string> args) {
  if (args.empty() || args[0] != "serve") return args;
  const auto flag =
      std::find_if(args.begin(), args.end(), [](const auto& a) { return name_of(a) == "--config"; });
  if (flag == args.end()) return args;
  const bool joined = flag->find('=') != std::string::npos;
  if (!joined && flag + 1 == args.end()) return args;  // its error comes later
  const std::string file = joined ? flag->substr(flag->find('=') + 1) : flag[1];
  args.erase(flag, flag + (joined ? 1 : 2));

  json::value config;
  try {
    config = read_config(read_file(file, ErrorCode::kUsage, "--config " + file));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kUsage, "--config {}: {}", file, error.what());
  }
  if (!config.is_object() && !config.is_null())
    fail(ErrorCode::kUsage, "--config {}: give names of flags and their values, e.g. port: 8000", file);

  const Given given = given_by(serve, args);
  std::vector<std::string> from_file;
  for (const auto& [raw, value] : config.is_null() ? json::object() : config.get_object()) {
    std::string key(raw);
    std::replace(key.begin(), key.end(), '_', '-');
    if (value.is_null()) continue;
    if (key == "model") {
      if (!value.is_string())
        fail(ErrorCode::kUsage, "--config {}: model is not a text; give a folder", file);
      if (!given.model) from_file.push_back(text_of(value));
      continue;
    }
    const CLI::Option* option = key == "config" ? nullptr : serve.get_option_no_throw("--" + key);
    if (!option) reject_key(serve, file, key);
    if (given.options.contains(option)) continue;
    if (!takes_values(*option)) {
      if (!value.is_bool())
        fail(ErrorCode::kUsage, "--config {}: {} is {}; give true or false", file, key, text_of(value));
      const std::string negated = key.starts_with("no-") ? key.substr(3) : "no-" + key;
      if (value.get_bool()) {
        from_file.push_back("--" + key);
      } else if (serve.get_option_no_throw("--" + negated) == option) {
        from_file.push_back("--" + negated);
      }
    } else if (value.is_array()) {
      for (const json::value& one : value.get_array()) from_file.push_back("--" + key + "=" + text_of(one));
    } else {
      from_file.push_back("--" + key + "=" + text_of(value));
    }
  }
  args.insert(args.begin() + 1, from_file.begin(), from_file.end());
  return args;
}

}  // namespace perigee::cli
