#include "cli/served_model.h"

#include <boost/json.hpp>
#include <ctime>

#include "cache/cached_sequence.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

boost::json::object read_object(const std::string& flag, const std::string& text) {
  if (text.empty()) return {};
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(text, error);
  if (error || !value.is_object()) fail(ErrorCode::kUsage, "{} {}: give a JSON object", flag, text);
  return std::move(value.get_object());
}

// The longest sequence that the cache holds alone, up to the model's context.
int64_t longest_sequence(Runner& runner) {
  const int64_t context = runner.config().max_position_embeddings, rows = runner.pool().rows();
  int64_t fits = 0, too_long = context + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (CachedSequence::most_rows(runner.pool().plan(), middle) <= rows ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace

void ServedModelFlags::add_to(CLI::App& app) {
  app.add_option("--served-model-name,-a,--alias", names,
                 "names of the model in the API; the first is the one in answers")
      ->default_str("MODEL as given")
      ->group("API");
  app.add_option("--max-model-len,-c,--ctx-size", max_model_len,
                 "tokens of prompt and answer together, e.g. 32768, 32k (32,000) or 32K (32,768); 0, -1, "
                 "auto: the model's")
      ->transform(token_count(2, 1 << 30, {"auto", "-1", "0"}))
      ->default_str("the model's")
      ->group("API");
  app.add_option(
         "--logprobs-mode", logprobs_mode,
         "of answers' tokens: the model's own, or those drawn from (after penalties, temperature, cuts)")
      ->check(CLI::IsMember({"raw_logprobs", "processed_logprobs"}))
      ->group("API");
  app.add_option("--default-chat-template-kwargs", chat_kwargs,
                 "JSON object: thinking, thinking_effort where a request has none")
      ->group("API");
}

serve::ServedModel ServedModelFlags::make(const ModelFlags& flags, const ChatModel& chat,
                                          Runner& runner) const {
  std::string folder = flags.model;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  serve::ServedModel model{.names = names,
                           .root = folder,
                           .tokenizer = chat.tokenizer(),
                           .format = make_chat_format(chat.tokenizer()),
                           .token_tree = std::make_shared<TokenTree>(chat.tokenizer().vocabulary()),
                           .stop_ids = chat.stop_ids(runner.config()),
                           .max_model_len = longest_sequence(runner),
                           .created = std::time(nullptr),
                           .defaults = SamplingFlags{}.params(flags.model),
                           .seed = seed,
                           .processed_logprobs = logprobs_mode == "processed_logprobs",
                           .chat_defaults = read_object("--default-chat-template-kwargs", chat_kwargs),
                           .numerics = runner.numerics(),
                           .version = PERIGEE_VERSION};
  if (model.names.empty()) model.names = {folder};
  if (max_model_len > 0) {
    if (max_model_len > model.max_model_len)
      fail(
          ErrorCode::kUsage,
          "--max-model-len {}: the model's context is {}, and the cache holds {} tokens of one answer; lower "
          "it, or raise --cache-memory",
          max_model_len, runner.config().max_position_embeddings, model.max_model_len);
    model.max_model_len = max_model_len;
  }
  return model;
}

}  // namespace perigee::cli
