// What the server knows of the model it serves, besides the engine that runs it.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/numerics.h"
#include "ops/ops.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace perigee::serve {

// system_fingerprint of the answers.
inline std::string fingerprint(const NumericsIdentity& numerics) { return "perigee-" + numerics.digest; }

struct ServedModel {
  std::vector<std::string> names;  // the first is the one in answers
  std::string root;                // the folder
  Tokenizer tokenizer;
  std::shared_ptr<const ChatFormat> format;
  std::shared_ptr<const TokenTree> token_tree;  // for structured output
  std::vector<int32_t> stop_ids;                // of the chat format and the config
  int64_t max_model_len = 0;                    // tokens of prompt and answer together
  int64_t created = 0;                          // seconds since 1970
  SampleParams defaults;                        // of generation_config.json
  std::optional<uint64_t> seed;                 // of requests without one; none: each draws its own
  bool processed_logprobs = false;    // of answers: what is drawn from, not the model's own distribution
  boost::json::object chat_defaults;  // of chat_template_kwargs
  NumericsIdentity numerics;
  std::string version;

  int64_t vocabulary() const { return tokenizer.vocabulary().size(); }
  const std::string& name() const { return names.front(); }
};

}  // namespace perigee::serve
