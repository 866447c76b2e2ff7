#include "engine/upload_weights.h"

#include <map>
#include <set>

#include "base/progress.h"
#include "model/weights_memory.h"
#include "ops/expert_addresses.h"

namespace perigee {

void upload_weights(Weights& weights, const ModelConfig& config, Memory& memory, bool show_progress) {
  constexpr int64_t kAlign = 256;
  std::vector<Array> arrays;
  const auto matrix = [&](const void** at, int64_t bytes) { arrays.push_back({.at = at, .bytes = bytes}); };
  for_each_array(weights, config, [&](Array a) { arrays.push_back(a); });
  for_each_matrix(weights, [&](AnyMatrix any, ColumnLanes) {
    if (auto** w = std::get_if<Linear*>(&any)) {
      Linear& m = **w;
      matrix(reinterpret_cast<const void**>(&m.weight), int64_t{m.out} * m.in * int64_t{sizeof(bf16)});
    } else {
      Mxfp4Linear& m = *std::get<Mxfp4Linear*>(any);
      matrix(reinterpret_cast<const void**>(&m.packed), int64_t{m.out} * m.in / 2);
      matrix(reinterpret_cast<const void**>(&m.scale), int64_t{m.out} * m.in / 32);
    }
  });
  std::map<const void*, int64_t> offset;  // by host address
  int64_t total = 0;
  for (const Array& a : arrays) {
    if (!offset.emplace(*a.at, total).second) continue;
    total += (a.bytes + kAlign - 1) / kAlign * kAlign;
  }
  const auto block = std::make_shared<MemoryBlock>(memory, total);
  Progress progress("weights to the GPU", show_progress ? total : 0, 1e9, "GB");
  std::set<const std::byte*> copied;
  for (const Array& a : arrays) {
    std::byte* to = block->data() + offset.at(*a.at);
    if (copied.insert(to).second) {
      memory.upload(to, *a.at, a.bytes);
      progress.advance(a.bytes);
    }
    *a.at = to;
  }
  weights.owners = {block};
  for (LayerWeights& layer : weights.layers) {
    auto* moe = std::get_if<MoeWeights>(&layer.mlp);
    if (!moe) continue;
    const std::vector<ExpertAddresses> experts = expert_addresses(moe->experts);
    const int64_t bytes = static_cast<int64_t>(experts.size() * sizeof(ExpertAddresses));
    const auto list = std::make_shared<MemoryBlock>(memory, bytes);
    memory.upload(list->data(), experts.data(), bytes);
    moe->addresses = list->as<ExpertAddresses>();
    weights.owners.push_back(list);
  }
  weights.files.clear();
}

}  // namespace perigee
