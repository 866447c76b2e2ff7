// StepRecorder: steps as CUDA graphs. A step of a shape (rows of each sequence, logits, bound of the lengths)
// runs plainly the first time, which sizes every workspace; the second time its stages are recorded; from
// then on the graph is replayed. What differs from step to step lies in StepTables, at the same addresses.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <span>
#include <vector>

#include "ops/cuda/device_memory.h"
#include "ops/ops.h"

namespace perigee::cuda {

class StepRecorder {
 public:
  StepRecorder(DeviceMemory& memory, bool enabled);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;

  // True: the step has been launched. False: its stages are to be called, on stream() while recording().
  bool begin(const StepInputs& inputs, std::span<const SequenceRows> bounds);
  void end();

  bool recording() const { return recording_; }
  cudaStream_t stream() const { return stream_; }
  int64_t graphs() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  using Shape = std::vector<int64_t>;
  void forget();
  void launch(cudaGraphExec_t graph);

  DeviceMemory& memory_;
  bool enabled_, recording_ = false;
  cudaStream_t stream_ = nullptr;
  Shape shape_;                              // of the step under way
  std::map<Shape, cudaGraphExec_t> graphs_;  // null: seen once
  int64_t generation_ = 0;                   // of the memory that the graphs point into
};

}  // namespace perigee::cuda
