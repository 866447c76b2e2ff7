#include "engine/generate.h"

#include <map>

#include "base/error.h"

namespace perigee {

std::vector<Generation> generate(Runner& runner, const std::vector<Request>& requests,
                                 const GenerateOptions& options) {
  Engine engine(runner, options.prefixes, {.scheduler = options.scheduler});
  for (const Request& r : requests) {
    check(r.n == 1, "generate: one answer a request");
    engine.validate(r);
  }
  std::map<RequestId, size_t> index;  // of those that run
  for (const Request& r : requests) {
    const size_t i = index.size();
    index[engine.submit(r)] = i;
  }
  std::vector<Generation> results(requests.size());
  const auto take_events = [&] {
    for (Event& event : engine.take_events()) {
      const size_t i = index.at(event.request);
      Generation& g = results[i];
      if (g.finish != FinishReason::kNone) continue;
      g.cached_tokens = event.cached_tokens;
      g.prompt_tokens.insert(g.prompt_tokens.end(), event.prompt_tokens.begin(), event.prompt_tokens.end());
      for (GeneratedToken& token : event.tokens) {
        g.tokens.push_back(std::move(token));
        if (options.on_token && !options.on_token(i, g.tokens.back())) engine.cancel(event.request);
      }
      if (event.finish == FinishReason::kNone) continue;
      g.finish = event.finish;
      g.error = event.error;
      if (options.on_finished) options.on_finished(i, g);
    }
  };
  do {
    take_events();
    if (!options.on_prefill) continue;
    for (const auto& [id, i] : index) {
      const std::optional<Engine::Progress> p = engine.progress(id);
      if (p && p->computed < p->prompt && !options.on_prefill(i, p->computed, p->prompt)) engine.cancel(id);
    }
  } while (engine.step());
  return results;
}

}  // namespace perigee
