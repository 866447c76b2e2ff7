// A model without arithmetic: everything it writes to a cache is a digest of the tokens before, so that any
// byte in the wrong place, of the wrong prefix or of another sequence shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cache/sequence_cache.h"

namespace perigee::test {

class FakeModel {
 public:
  explicit FakeModel(const CacheShape& shape) : shape_(shape) {}

  // Computes tokens[cache.length(), end), the last `drafts` of which may be dropped.
  void step(SequenceCache& cache, std::span<const int32_t> tokens, int64_t end, int64_t drafts = 0) const {
    const int64_t start = cache.length(), accepted = end - drafts, D = int64_t{shape_.kda_heads} * 128;
    cache.reserve(end, accepted);
    const std::vector<uint32_t> digest = digests(tokens, end);
    for (size_t layer = 0; layer < shape_.attention_has_index.size(); ++layer) {
      const PageTable pages = cache.pages(static_cast<int>(layer));
      for (int64_t p = start; p < end; ++p) {
        const Entry e = entry(pages, p);
        fill(e.latent, latent_bytes(shape_.latent_format), digest[p + 1] + static_cast<uint32_t>(layer));
        if (!pages.has_index) continue;
        fill(e.values, index_key_value_bytes(shape_.index_format), digest[p + 1] + 100);
        fill(e.scales, index_key_scale_bytes(shape_.index_format), digest[p + 1] + 200);
      }
    }
    for (int layer = 0; layer < shape_.kda_layers; ++layer) {
      const KdaSlot slot = cache.slot(layer);
      for (int64_t p = std::max(start, end - KdaSlot::kRing); p < end; ++p) {
        const int64_t at = p % KdaSlot::kRing;
        for (int64_t c = 0; c < 3 * D; c += 2)
          fill(slot.conv_input + at * 3 * D + c, 4, conv(digest, p, layer, c));
        fill(slot.G + at * D, D * 4, digest[p + 1] + 300);
      }
      const int64_t base = accepted / kChunk * kChunk;
      if (base <= *slot.base) continue;
      for (int head = 0; head < shape_.kda_heads; ++head)
        fill(slot.stored + head * slot.stored_stride, kKdaStateBytes, state(digest, base, layer, head));
      *slot.base = base;
    }
    cache.set_length(end);
  }

  // Everything that the next step would read.
  void expect(SequenceCache& cache, std::span<const int32_t> tokens) const {
    const int64_t length = cache.length(), base = cache.base(), D = int64_t{shape_.kda_heads} * 128;
    ASSERT_LE(length, static_cast<int64_t>(tokens.size()));
    if (length == 0) return;
    const std::vector<uint32_t> digest = digests(tokens, length);
    for (size_t layer = 0; layer < shape_.attention_has_index.size(); ++layer) {
      const PageTable pages = cache.pages(static_cast<int>(layer));
      for (int64_t p = 0; p < length; ++p) {
        const Entry e = entry(pages, p);
        ASSERT_TRUE(
            holds(e.latent, latent_bytes(shape_.latent_format), digest[p + 1] + static_cast<uint32_t>(layer)))
            << "latent of position " << p;
        if (!pages.has_index) continue;
        ASSERT_TRUE(holds(e.values, index_key_value_bytes(shape_.index_format), digest[p + 1] + 100)) << p;
        ASSERT_TRUE(holds(e.scales, index_key_scale_bytes(shape_.index_format), digest[p + 1] + 200)) << p;
      }
    }
    for (int layer = 0; layer < shape_.kda_layers; ++layer) {
      const KdaSlot slot = cache.slot(layer);
      ASSERT_EQ(*slot.base, base);
      for (int64_t p = std::max<int64_t>(0, base - kConvInputs); p < length; ++p) {
        const int64_t at = p % KdaSlot::kRing;
        for (int64_t c = 0; c < 3 * D; c += 2)
          ASSERT_TRUE(holds(slot.conv_input + at * 3 * D + c, 4, conv(digest, p, layer, c))) << "conv " << p;
        if (p >= base) {
          ASSERT_TRUE(holds(slot.G + at * D, D * 4, digest[p + 1] + 300)) << "chunk row " << p;
        }
      }
      for (int head = 0; head < shape_.kda_heads; ++head) {
        const uint32_t want = base == 0 ? 0 : state(digest, base, layer, head);
        ASSERT_TRUE(holds(slot.state + head * slot.state_stride, kKdaStateBytes, want))
            << "state at " << base;
      }
    }
  }

 private:
  struct Entry {
    uint8_t *latent, *values = nullptr, *scales = nullptr;
  };
  Entry entry(const PageTable& pages, int64_t p) const {
    const int in_page = static_cast<int>(p % kPageTokens);
    Entry e{.latent = pages.latent(p / kPageTokens) + in_page * latent_bytes(shape_.latent_format)};
    if (pages.has_index) {
      e.values = pages.index_key(p / kPageTokens) + index_value_offset(shape_.index_format, in_page);
      e.scales = pages.index_key(p / kPageTokens) + index_scale_offset(shape_.index_format, in_page);
    }
    return e;
  }

  // digest[n] is of tokens[0, n).
  static std::vector<uint32_t> digests(std::span<const int32_t> tokens, int64_t n) {
    std::vector<uint32_t> out = {0x12345678u};
    for (int64_t i = 0; i < n; ++i)
      out.push_back((out.back() ^ static_cast<uint32_t>(tokens[i])) * 0x9E3779B1u + 1);
    return out;
  }
  static uint32_t conv(const std::vector<uint32_t>& digest, int64_t p, int layer, int64_t channel) {
    return digest[p + 1] * 31 + static_cast<uint32_t>(layer * 100000 + channel);
  }
  static uint32_t state(const std::vector<uint32_t>& digest, int64_t base, int layer, int head) {
    return digest[base] * 17 + static_cast<uint32_t>(layer * 64 + head);
  }

  static void fill(void* at, int64_t bytes, uint32_t word) {
    for (int64_t i = 0; i + 4 <= bytes; i += 4) std::memcpy(static_cast<uint8_t*>(at) + i, &word, 4);
  }
  static bool holds(const void* at, int64_t bytes, uint32_t word) {
    for (int64_t i = 0; i + 4 <= bytes; i += 4)
      if (std::memcmp(static_cast<const uint8_t*>(at) + i, &word, 4) != 0) return false;
    return true;
  }

  const CacheShape& shape_;
};

}  // namespace perigee::test
