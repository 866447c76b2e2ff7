// A model folder as the API serves it: what `serve` and `generate --batch` have in common.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/conversation.h"
#include "cli/flags.h"
#include "serve/served_model.h"

namespace perigee::cli {

struct ServedModelFlags {
  std::vector<std::string> names;
  std::string chat_kwargs, logprobs_mode = "raw_logprobs";
  int64_t max_model_len = 0;
  std::optional<uint64_t> seed = std::nullopt;  // --seed of serve alone: generate's is of its prompt

  void add_to(CLI::App& app);
  serve::ServedModel make(const ModelFlags& flags, const ChatModel& chat, Runner& runner) const;
};

}  // namespace perigee::cli
