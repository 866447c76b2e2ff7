#include "cli/dummy_context.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"

namespace perigee::cli {

namespace {

constexpr int64_t kHead = 128;

// Uniform in (−1, 1)·scale.
class Draw {
 public:
  Draw(uint64_t seed, uint32_t stream) : seed_(seed), stream_(stream) {}
  void fill(float* out, int64_t count, float scale) {
    for (int64_t i = 0; i < count; i += 4) {
      const Philox4 words = random_words(seed_, stream_, static_cast<uint64_t>(position_++), 0);
      for (int64_t j = i; j < std::min(i + 4, count); ++j)
        out[j] = (2 * uniform_open(words[j - i]) - 1) * scale;
    }
  }

 private:
  uint64_t seed_;
  uint32_t stream_;
  int64_t position_ = 0;
};

uint32_t stream_of(int kind, int64_t layer, int64_t page) {
  return static_cast<uint32_t>(kind) << 30 ^ static_cast<uint32_t>(layer) << 20 ^ static_cast<uint32_t>(page);
}

void fill_page(const PageTable& pages, int64_t page, uint64_t seed, uint32_t stream) {
  Draw draw(seed, stream);
  const int64_t bytes = latent_bytes(pages.latent_format);
  for (int t = 0; t < kPageTokens; ++t) {
    float latent[kLatentDim], key[kIndexKeyDim];
    draw.fill(latent, kLatentDim, 1.7f);  // variance one, as after the norm
    encode_latent(pages.latent_format, latent, pages.latent_scale, pages.latent(page) + t * bytes);
    if (!pages.has_index) continue;
    draw.fill(key, kIndexKeyDim, 1.7f);
    uint8_t* at = pages.index_key(page);
    encode_index_key(pages.index_format, key, at + index_value_offset(pages.index_format, t),
                     at + index_scale_offset(pages.index_format, t));
  }
}

// S at position `tokens`, and the conv inputs before it.
void fill_slot(const KdaSlot& slot, int heads, int64_t tokens, uint64_t seed, uint32_t stream) {
  Draw draw(seed, stream);
  const int64_t width = heads * kHead;
  for (int head = 0; head < heads; ++head)
    draw.fill(slot.stored + head * slot.stored_stride, kHead * kHead, 0.1f);
  std::vector<float> row(3 * width);
  for (int64_t i = 0; i < KdaSlot::kRing; ++i) {
    draw.fill(row.data(), 3 * width, 1.0f);
    std::transform(row.begin(), row.end(), slot.conv_input + i * 3 * width, float_to_bf16);
  }
  *slot.base = tokens;
}

}  // namespace

void check_depth(const char* flag, int64_t tokens) {
  if (tokens % kChunk == 0) return;
  fail(ErrorCode::kUsage, "{} {}: must be a multiple of {}, where KDA states stand; {} and {} are", flag,
       tokens, kChunk, tokens / kChunk * kChunk, tokens / kChunk * kChunk + kChunk);
}

void fill_dummy_context(SequenceCache& cache, const CacheShape& shape, int64_t tokens, uint64_t seed,
                        ThreadPool& pool) {
  check(tokens % kChunk == 0, "a made-up context ends at a chunk start");
  if (tokens == 0) return;
  cache.reserve(tokens);
  const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  const auto layers = static_cast<int64_t>(shape.attention_has_index.size());
  pool.run(layers * pages, [&](int64_t i) {
    const int64_t layer = i / pages, page = i % pages;
    fill_page(cache.pages(static_cast<int>(layer)), page, seed, stream_of(1, layer, page));
  });
  for (int layer = 0; layer < shape.kda_layers; ++layer)
    fill_slot(cache.slot(layer), shape.kda_heads, tokens, seed, stream_of(2, layer, 0));
  cache.set_length(tokens);
}

}  // namespace perigee::cli
