// A context that nobody computed: cache contents of the right form and scale for `tokens` positions, so that
// a step at a great depth can be timed at once. Latents, index keys, KDA states and chunk rows are seeded
// random values like those of dummy weights; what the model then says means nothing.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "cache/sequence_cache.h"

namespace perigee::cli {

// Throws Error{kUsage} naming the flag unless `tokens` is a multiple of kChunk: KDA states stand at chunk
// starts alone.
void check_depth(const char* flag, int64_t tokens);

// `cache` is empty before and has `tokens` tokens afterwards.
void fill_dummy_context(SequenceCache& cache, const CacheShape& shape, int64_t tokens, uint64_t seed,
                        ThreadPool& pool);

}  // namespace perigee::cli
