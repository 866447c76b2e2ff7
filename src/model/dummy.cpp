#include "model/dummy.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/philox.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "formats/bf16.h"
#include "model/weights_memory.h"

namespace perigee {

namespace {

constexpr uint32_t kStream = 0x64756D6D;  // "dumm"

uint64_t name_key(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325u;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001B3u;
  return h;
}

// Near-normal with mean 0 and variance 1 from one word: the sum of its four bytes. Integers only, so that
// every machine draws the same value.
float normal(uint32_t w) {
  const int sum = static_cast<int>((w & 0xFF) + ((w >> 8) & 0xFF) + ((w >> 16) & 0xFF) + (w >> 24));
  return static_cast<float>(sum - 510) * (1.0f / 147.8f);
}

// value = mean + scale · draw
struct Distribution {
  bool uniform = false;  // a draw is uniform in (0, 1), else normal
  float mean = 0, scale = 1;
};

Distribution distribution(const TensorSpec& spec, const ModelConfig& config) {
  const std::string_view name = spec.name;
  if (spec.form == TensorForm::kMatrix || spec.form == TensorForm::kVision) {
    if (spec.kind == TensorKind::kEmbedding) return {false, 0, 1};
    if (spec.shape.size() < 2) return {false, 1, 0.1f};  // vision norms
    return {false, 0, 1.0f / std::sqrt(static_cast<float>(spec.shape.back()))};
  }
  const bool bounded = config.kda.gate_lower_bound.has_value();
  // Decay rates between one and e^2.8 with small steps, or their bounded counterpart, as training leaves
  // them.
  if (spec.form == TensorForm::kALog)
    return bounded ? Distribution{true, -0.7f, 1.4f} : Distribution{true, 0, 2.77f};
  if (name.ends_with("dt_bias"))
    return bounded ? Distribution{true, -4, 5} : Distribution{true, -6.9f, 4.65f};
  if (name.ends_with("conv1d.weight")) return {false, 0, 0.5f};
  if (name.ends_with("_res_proj.weight"))
    return {false, 0, 1.0f / std::sqrt(static_cast<float>(config.hidden_size))};
  if (name.ends_with("e_score_correction_bias")) return {false, 0, 0.05f};
  if (name.ends_with(".bias")) return {false, 0, 0.1f};
  return {false, 1, 0.1f};  // norms
}

// The words of positions [first, first + 8): 32 in all, eight generators side by side so that the compiler
// can use vectors. Word 4·i + j is random_words(key, kStream, first + i, 0)[j].
constexpr int kLanes = 8;
void draw_words(uint64_t key, uint64_t first, uint32_t* words) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t position = first + static_cast<uint64_t>(i);
    c0[i] = 0;
    c1[i] = static_cast<uint32_t>(position);
    c2[i] = static_cast<uint32_t>(position >> 32);
    c3[i] = kStream;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i], p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(p1);
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// Calls put(i, word) for word i of [begin, end), relative to begin.
template <typename Put>
void for_each_word(uint64_t key, int64_t begin, int64_t end, const Put& put) {
  constexpr int64_t kWords = 4 * kLanes;
  uint32_t words[kWords];
  for (int64_t at = begin; at < end; at += kWords) {
    draw_words(key, static_cast<uint64_t>(at) / 4, words);
    const int64_t n = std::min(kWords, end - at);
    for (int64_t j = 0; j < n; ++j) put(at - begin + j, words[j]);
  }
}

}  // namespace

void fill_dummy(const TensorSpec& spec, const ModelConfig& config, uint64_t seed, int64_t begin, int64_t end,
                std::byte* out) {
  // One key per tensor; the constant spreads small seeds over all bits.
  const uint64_t key = name_key(spec.name) ^ (seed * 0x9E3779B97F4A7C15u);
  if (spec.form == TensorForm::kPacked) {  // four bytes, eight values a word
    for_each_word(key, begin / 4, (end + 3) / 4, [&](int64_t i, uint32_t w) {
      std::memcpy(out + 4 * i, &w, static_cast<size_t>(std::min<int64_t>(4, end - begin - 4 * i)));
    });
    return;
  }
  if (spec.form == TensorForm::kScale) {
    // Uniform nibbles have a standard deviation of 2.93; a scale of 2^-round(log2(2.93·√in)) or its neighbour
    // above or below leaves about 1/√in.
    const double in = static_cast<double>(spec.shape[1]) * 32;
    const int middle = 127 - static_cast<int>(std::lround(std::log2(2.93 * std::sqrt(in))));
    for_each_word(key, begin / 4, (end + 3) / 4, [&](int64_t i, uint32_t w) {
      for (int64_t j = 4 * i; j < std::min(4 * i + 4, end - begin); ++j) {
        const uint32_t pick = w >> (8 * (j % 4)) & 3;
        out[j] = static_cast<std::byte>(middle + (pick == 0 ? -1 : pick == 1 ? 1 : 0));
      }
    });
    return;
  }
  const Distribution d = distribution(spec, config);
  const auto value = [&](uint32_t w) { return d.mean + d.scale * (d.uniform ? uniform_open(w) : normal(w)); };
  if (spec.dtype == DType::kF32) {
    // The padding behind the heads of A_log is zero.
    const int64_t live = spec.form == TensorForm::kALog ? spec.parameters : end;
    float* to = reinterpret_cast<float*>(out);
    for_each_word(key, begin, end,
                  [&](int64_t i, uint32_t w) { to[i] = begin + i < live ? value(w) : 0.0f; });
  } else {
    bf16* to = reinterpret_cast<bf16*>(out);
    for_each_word(key, begin, end, [&](int64_t i, uint32_t w) { to[i] = float_to_bf16(value(w)); });
  }
}

namespace {

// The weights are written page by page, so without this check a model that is too large would end the
// process, or another one, without a word.
void check_fits(size_t bytes) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    const uint64_t available = std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10) * 1024;
    if (bytes <= available) return;
    fail(
        ErrorCode::kUnsupported,
        "dummy weights take {:.1f} GB of memory and {:.1f} GB are free; cut the model with --override-config "
        "num_hidden_layers=4,num_experts=16,hidden_size=…",
        bytes / 1e9, available / 1e9);
  }
}

}  // namespace

TensorSet make_dummy_checkpoint(const ModelConfig& config, uint64_t seed, int threads, bool show_progress) {
  struct Piece {
    int spec;
    int64_t begin, end;
  };
  constexpr int64_t kPiece = 1 << 20;  // elements of one piece of work
  std::vector<TensorSpec> specs;
  std::vector<size_t> offsets;
  std::vector<Piece> pieces;
  size_t total = 0;
  for_each_tensor(config, [&](const TensorSpec& spec) {
    if (spec.kind == TensorKind::kVision || spec.optional) return;
    const int64_t n = element_count(spec.shape);
    for (int64_t at = 0; at < n; at += kPiece)
      pieces.push_back({static_cast<int>(specs.size()), at, std::min(n, at + kPiece)});
    offsets.push_back(total);
    total += (static_cast<size_t>(n) * dtype_size(spec.dtype) + 63) / 64 * 64;
    specs.push_back(spec);
  });

  check_fits(total);
  const auto memory = std::make_shared<Region>(total);
  Progress progress("making dummy weights", static_cast<int64_t>(show_progress ? total : 0), 1e9, "GB");
  std::mutex mutex;
  ThreadPool pool(threads);
  pool.run(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const Piece& p = pieces[i];
    const TensorSpec& spec = specs[p.spec];
    const size_t width = dtype_size(spec.dtype);
    fill_dummy(spec, config, seed, p.begin, p.end,
               memory->data() + offsets[p.spec] + static_cast<size_t>(p.begin) * width);
    std::lock_guard lock(mutex);
    progress.advance((p.end - p.begin) * static_cast<int64_t>(width));
  });

  TensorSet set;
  set.origin = "dummy";
  set.files = {"dummy"};
  set.owners = {memory};
  for (size_t i = 0; i < specs.size(); ++i)
    set.tensors.emplace(specs[i].name,
                        StoredTensor{{specs[i].dtype, specs[i].shape, memory->data() + offsets[i]}, 0});
  return set;
}

}  // namespace perigee
