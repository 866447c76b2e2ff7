#include "cache/sequence_cache.h"

#include <cstring>

namespace perigee {

namespace {
constexpr int64_t kHead = 128;

// New or freed memory holds NaN in test builds, so that a read of it shows.
void poison([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef PERIGEE_TEST_HOOKS
  std::memset(data, 0xFF, bytes);
#endif
}

Buffer poisoned(size_t bytes) {
  Buffer buffer(bytes);
  poison(buffer.data(), bytes);
  return buffer;
}

Buffer copy_of(const Buffer& from) {
  Buffer buffer(from.size());
  std::memcpy(buffer.data(), from.data(), from.size());
  return buffer;
}
}  // namespace

int64_t CacheShape::bytes_per_token() const {
  int64_t bytes = 0;
  for (bool index : attention_has_index) {
    bytes += static_cast<int64_t>(latent_bytes(latent_format));
    if (index) bytes += static_cast<int64_t>(index_key_bytes(index_format));
  }
  return bytes;
}

int64_t CacheShape::state_bytes() const {
  return int64_t{kda_layers} * kda_heads * (kHead * kHead * 4 + 3 * 3 * kHead * 2);
}

SequenceCache::SequenceCache(const CacheShape& shape) : shape_(shape) {
  attention_.resize(shape.attention_has_index.size());
  for (size_t i = 0; i < attention_.size(); ++i) attention_[i].has_index = shape.attention_has_index[i];
  const int64_t D = shape.kda_heads * kHead, rows = KdaSlot::kRing;
  for (int i = 0; i < shape.kda_layers; ++i) {
    KdaLayer layer;
    layer.state = Buffer(D * kHead * 4);  // S = 0 before the first token
    layer.conv_input = poisoned(rows * 3 * D * 2);
    layer.k = poisoned(rows * D * 2);
    layer.G = poisoned(rows * D * 4);
    layer.w = poisoned(rows * D * 4);
    layer.T = poisoned(rows * shape.kda_heads * kChunk * 4);
    kda_.push_back(std::move(layer));
  }
}

void SequenceCache::reserve(int64_t tokens) {
  for (; pages_ * kPageTokens < tokens; ++pages_) {
    for (AttentionLayer& layer : attention_) {
      layer.latent_pages.push_back(poisoned(kPageTokens * latent_bytes(shape_.latent_format)));
      layer.latent.push_back(layer.latent_pages.back().as<uint8_t>());
      if (!layer.has_index) continue;
      layer.index_pages.push_back(poisoned(kPageTokens * index_key_bytes(shape_.index_format)));
      layer.index_key.push_back(layer.index_pages.back().as<uint8_t>());
    }
  }
}

void SequenceCache::set_length(int64_t length) {
  for (const KdaLayer& layer : kda_)
    check(length >= layer.base, "a sequence cannot shrink below a stored chunk start");
  const int64_t latent = static_cast<int64_t>(latent_bytes(shape_.latent_format));
  for (int64_t p = length; p < length_; ++p) {
    for (AttentionLayer& layer : attention_)
      poison(layer.latent[p / kPageTokens] + p % kPageTokens * latent, latent);
    const int64_t D = shape_.kda_heads * kHead, at = p % KdaSlot::kRing;
    for (KdaLayer& layer : kda_) {
      poison(layer.conv_input.as<bf16>() + at * 3 * D, 3 * D * 2);
      poison(layer.k.as<bf16>() + at * D, D * 2);
      poison(layer.G.as<float>() + at * D, D * 4);
      poison(layer.w.as<float>() + at * D, D * 4);
      poison(layer.T.as<float>() + at * shape_.kda_heads * kChunk, shape_.kda_heads * kChunk * 4);
    }
  }
  length_ = length;
}

SequenceCache SequenceCache::copy() const {
  SequenceCache out(shape_);
  for (size_t i = 0; i < attention_.size(); ++i) {
    AttentionLayer& to = out.attention_[i];
    for (const Buffer& page : attention_[i].latent_pages) {
      to.latent_pages.push_back(copy_of(page));
      to.latent.push_back(to.latent_pages.back().as<uint8_t>());
    }
    for (const Buffer& page : attention_[i].index_pages) {
      to.index_pages.push_back(copy_of(page));
      to.index_key.push_back(to.index_pages.back().as<uint8_t>());
    }
  }
  for (size_t i = 0; i < kda_.size(); ++i) {
    const KdaLayer& from = kda_[i];
    out.kda_[i] = {.state = copy_of(from.state),
                   .conv_input = copy_of(from.conv_input),
                   .k = copy_of(from.k),
                   .G = copy_of(from.G),
                   .w = copy_of(from.w),
                   .T = copy_of(from.T),
                   .base = from.base};
  }
  out.length_ = length_;
  out.pages_ = pages_;
  return out;
}

void SequenceCache::zero_states() {
  for (KdaLayer& layer : kda_) std::memset(layer.state.data(), 0, layer.state.size());
}

PageTable SequenceCache::pages(int attention_layer) const {
  const AttentionLayer& layer = attention_[attention_layer];
  return {.latent = layer.latent.data(),
          .index_key = layer.has_index ? layer.index_key.data() : nullptr,
          .latent_format = shape_.latent_format,
          .index_format = shape_.index_format,
          .latent_scale = shape_.latent_scale};
}

KdaSlot SequenceCache::slot(int kda_layer) {
  KdaLayer& layer = kda_[kda_layer];
  return {.state = layer.state.as<float>(),
          .base = &layer.base,
          .conv_input = layer.conv_input.as<bf16>(),
          .k = layer.k.as<bf16>(),
          .G = layer.G.as<float>(),
          .w = layer.w.as<float>(),
          .T = layer.T.as<float>()};
}

}  // namespace perigee
