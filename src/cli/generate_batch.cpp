#include "cli/generate_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/progress.h"
#include "cli/conversation.h"
#include "cli/validators.h"
#include "serve/engine_thread.h"
#include "serve/offline_batch.h"

namespace perigee::cli {

void BatchFlags::add_to(CLI::App& app) {
  const auto group = [](CLI::Option* option) { option->group("Batch"); };
  group(
      app.add_option("--batch", requests,
                     "a file of requests in OpenAI's batch format, a JSON object a line: custom_id, method, "
                     "url, body")
          ->check(CLI::ExistingFile));
  group(
      app.add_option("--out", answers, "the file of answers; one from a run that was killed is gone on with")
          ->check(not_empty()));
  group(app.add_option("--max-num-seqs", engine.scheduler.max_num_seqs, "answers computed at once")
            ->transform(whole_number(1, 256)));
  group(app.add_option("--max-num-batched-tokens", engine.scheduler.max_num_batched_tokens,
                       "tokens of one step; 512 on a CPU, 4096 on a GPU when not given")
            ->transform(whole_number(16, 1 << 20)));
  engine.add_common_to(app);
  served.add_to(app);
}

int generate_batch(const ModelFlags& model_flags, BatchFlags flags) {
  if (flags.answers.empty()) fail(ErrorCode::kUsage, "--batch without --out; name the file for the answers");
  const ChatModel chat(model_flags.model);
  SchedulerOptions& scheduler = flags.engine.scheduler;
  Recording recording(flags.engine);
  const PrefixCacheOptions prefixes = flags.engine.prefix_cache(model_flags);
  Runner runner = model_flags.load(scheduler.max_num_seqs, scheduler.max_num_batched_tokens);
  chat.check_fits(runner.config());
  const serve::ServedModel model = flags.served.make(model_flags, chat, runner);
  flags.engine.settle(runner.memory());
  serve::EngineThread engine(
      runner, prefixes, {.scheduler = scheduler, .log = recording.start(model_flags, flags.engine, runner)});
  serve::Api api(model, engine, {.max_requests = std::numeric_limits<int64_t>::max(), .access_log = false});
  std::optional<Progress> progress;
  int64_t shown = 0;
  const auto show = [&](int64_t done, int64_t all) {
    if (!progress) progress.emplace("batch", all, 1, "requests");
    progress->advance(done - shown);
    shown = done;
  };
  const serve::OfflineBatchReport report = serve::run_offline_batch(
      api, {.requests = flags.requests,
            .answers = flags.answers,
            .fingerprint = serve::fingerprint(model.numerics),
            .in_flight = 2 * scheduler.max_num_seqs,  // the next ones wait, tokenised
            .on_progress = show});
  engine.stop();
  api.stop();
  progress.reset();
  fmt::print(stderr, "{} requests: {} answered, {} failed, {} had their answer already; {}\n",
             report.requests, report.answered, report.failed, report.kept, flags.answers);
  return 0;
}

}  // namespace perigee::cli
