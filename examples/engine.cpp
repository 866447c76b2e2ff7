// The engine as a library: several requests, their answers as they come, one cancelled.
//
//   build-test/example_engine models/tiny-k31
#include <cstdio>

#include "engine/engine.h"

int main(int argc, char** argv) {
  using namespace perigee;
  const std::string folder = argc > 1 ? argv[1] : "models/tiny-k31";
  try {
    const ModelConfig config = load_config(folder);
    Runner runner(config, load_weights(folder, config, {}), {.cache_bytes = 256 << 20});
    PrefixTree prefixes(runner.pool());
    Engine engine(runner, &prefixes, {.scheduler = {.max_num_seqs = 4}});

    // Token ids; src/text turns chats into them and back. Each request has its own sampling.
    const std::vector<int32_t> prompt = {72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100};
    const RequestId greedy =
        engine.submit({.prompt = prompt, .sampling = {.temperature = 0}, .max_tokens = 8});
    const RequestId drawn =
        engine.submit({.prompt = prompt, .sampling = {.seed = 7}, .max_tokens = 8, .n = 2});
    const RequestId unwanted = engine.submit({.prompt = prompt, .max_tokens = 1000});

    while (engine.step()) {
      for (const Event& event : engine.take_events()) {
        const char* name = event.request == greedy ? "greedy" : event.request == drawn ? "drawn" : "unwanted";
        for (const GeneratedToken& token : event.tokens)
          std::printf("%s %d: token %d, log-probability %.3f\n", name, event.branch, token.id, token.logprob);
        if (event.finish != FinishReason::kNone)
          std::printf("%s %d: %s after %ld cached prompt tokens\n", name, event.branch,
                      to_string(event.finish), static_cast<long>(event.cached_tokens));
      }
      if (engine.stats().steps == 3) engine.cancel(unwanted);
    }
    for (const Event& event : engine.take_events())
      if (event.request == unwanted) std::printf("unwanted 0: %s\n", to_string(event.finish));
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
