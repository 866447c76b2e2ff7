#include "model/config_fields.h"

#include <boost/json/serialize.hpp>

#include "base/error.h"

namespace perigee {

namespace json = boost::json;

Fields::Found Fields::find(Names names) const {
  Found found{std::string(*names.begin()), nullptr};
  for (std::string_view name : names) {
    const json::value* value = object_->if_contains(json::string_view(name.data(), name.size()));
    if (!value || value->is_null()) continue;
    if (found.value && *found.value != *value) {
      fail(ErrorCode::kBadConfig,
           "{}: {}={} and {}={} are two spellings of one field and disagree; remove one", origin_,
           full_name(found.name), json::serialize(*found.value), full_name(name), json::serialize(*value));
    }
    if (!found.value) found = {std::string(name), value};
  }
  return found;
}

void Fields::reject(std::string_view name, std::string_view problem) const {
  fail(ErrorCode::kBadConfig, "{}: {}: {}", origin_, full_name(name), problem);
}

int64_t Fields::integer(Names names, std::optional<int64_t> fallback, const Range& range) const {
  const Found found = find(names);
  if (!found.value) {
    if (fallback) return *fallback;
    reject(found.name, "the field is missing; add it to the config");
  }
  const int64_t* number = found.value->if_int64();
  if (!number || *number < range.low || *number > range.high || *number % range.multiple != 0) {
    reject(found.name,
           fmt::format("{} was found; an integer in [{}, {}]{} is needed", json::serialize(*found.value),
                       range.low, range.high,
                       range.multiple > 1 ? fmt::format(", a multiple of {},", range.multiple) : ""));
  }
  return *number;
}

double Fields::number(Names names, std::optional<double> fallback, double low, double high) const {
  const Found found = find(names);
  if (!found.value) {
    if (fallback) return *fallback;
    reject(found.name, "the field is missing; add it to the config");
  }
  const double value = found.value->is_number() ? found.value->to_number<double>() : low - 1;
  if (!(value >= low && value <= high))
    reject(found.name, fmt::format("{} was found; a number in [{}, {}] is needed",
                                   json::serialize(*found.value), low, high));
  return value;
}

bool Fields::boolean(Names names, std::optional<bool> fallback) const {
  const Found found = find(names);
  if (!found.value) {
    if (fallback) return *fallback;
    reject(found.name, "the field is missing; add it to the config");
  }
  if (!found.value->is_bool())
    reject(found.name, fmt::format("{} was found; true or false is needed", json::serialize(*found.value)));
  return found.value->get_bool();
}

std::string Fields::text(Names names, std::optional<std::string> fallback) const {
  const Found found = find(names);
  if (!found.value) {
    if (fallback) return *fallback;
    reject(found.name, "the field is missing; add it to the config");
  }
  if (!found.value->is_string())
    reject(found.name, fmt::format("{} was found; a string is needed", json::serialize(*found.value)));
  return std::string(found.value->get_string());
}

std::vector<int64_t> Fields::integers(Names names) const {
  const Found found = find(names);
  std::vector<int64_t> out;
  if (!found.value) return out;
  const auto one = [&](const json::value& v) {
    if (v.is_int64())
      out.push_back(v.get_int64());
    else
      reject(found.name, fmt::format("{} was found where an integer is needed", json::serialize(v)));
  };
  if (const json::array* list = found.value->if_array())
    for (const json::value& v : *list) one(v);
  else
    one(*found.value);
  return out;
}

std::optional<Fields> Fields::child(std::string_view name) const {
  const Found found = find({name});
  if (!found.value) return std::nullopt;
  if (!found.value->is_object()) reject(name, "an object is needed");
  return Fields(found.value->get_object(), origin_, full_name(name) + ".");
}

void Fields::only(Names names, const json::value& allowed, std::string_view why) const {
  const Found found = find(names);
  if (found.value && *found.value != allowed)
    fail(ErrorCode::kUnsupported, "{}: {}={} is not supported: {}; only {} runs", origin_,
         full_name(found.name), json::serialize(*found.value), why, json::serialize(allowed));
}

}  // namespace perigee
