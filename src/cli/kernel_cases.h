// The stages of `perigee bench kernels`: each called as a model step calls it, on the weights of one layer of
// a model with dummy weights and on made-up activations and contexts, with the cost it cannot avoid.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "cache/sequence_cache.h"
#include "model/step_cost.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace perigee::cli {

struct KernelCase {
  std::string name;  // the stage and its sizes, e.g. "kda_project rows=512"
  Cost cost;         // as step_cost.h counts, for this call alone
  std::function<void(Backend&)> run;
  std::function<void()> rewind = [] {};  // untimed, before each call: undoes what the last one stored

  std::string stage() const { return name.substr(0, name.find(' ')); }
};

struct KernelSizes {
  int batch = 16;           // rows of a decode batch
  int prefill_rows = 512;   // rows of a prefill step
  int64_t context = 32768;  // tokens before a decode row; prefill rows stand behind an eighth of them
};

// Makes the cases of every stage that the model has, and owns what they work on.
class KernelCases {
 public:
  KernelCases(const ModelConfig& config, const Weights& weights, const CacheShape& shape,
              const ReductionPlan& plan, const KernelSizes& sizes, ThreadPool& pool);
  ~KernelCases();

  // Every stage that some model has a case of.
  static std::vector<std::string> stages();
  const std::vector<KernelCase>& cases() const { return cases_; }

 private:
  struct Context;  // one sequence with a made-up context, and the rows that follow it

  void add(
      std::string stage, std::string sizes, Cost cost, std::function<void(Backend&)> run,
      std::function<void()> rewind = [] {});
  void add_whole_model(int rows);
  void add_kda(const KdaWeights& weights, int rows);
  void add_kda_decode(int sequences);
  void add_kda_prefill(int rows);
  void add_mla(const MlaWeights& weights, int rows, Context& context);
  void add_attention(int rows, Context& context);
  void add_dense(const GluWeights& weights, int rows);
  void add_moe(const MoeWeights& weights, int rows);

  Context& context(int rows, int64_t depth);
  KdaChunkArgs chunk_args(const Context& context, int rows);
  ActivationParams activation() const;
  // `count` values uniform in (−scale, scale).
  bf16* values(int64_t count, float scale);
  float* floats(int64_t count, float low, float high);
  template <typename T>
  T* room(int64_t count) {
    return arena_.take<T>(count);
  }

  const ModelConfig& config_;
  const Weights& weights_;
  CacheShape shape_;
  ReductionPlan plan_;
  KernelSizes sizes_;
  ThreadPool& pool_;
  Arena arena_;
  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<Context>> contexts_;
  std::vector<KernelCase> cases_;
};

}  // namespace perigee::cli
