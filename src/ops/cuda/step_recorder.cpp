#include "ops/cuda/step_recorder.h"

#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

namespace {
constexpr int kMostRows = 1024;  // longer steps are bound by their kernels, not by launches
constexpr size_t kMostGraphs = 256;
}  // namespace

StepRecorder::StepRecorder(DeviceMemory& memory, bool enabled) : memory_(memory), enabled_(enabled) {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

StepRecorder::~StepRecorder() {
  forget();
  cudaStreamDestroy(stream_);
}

void StepRecorder::forget() {
  for (auto& [shape, graph] : graphs_) {
    if (graph) cudaGraphExecDestroy(graph);
  }
  graphs_.clear();
}

void StepRecorder::launch(cudaGraphExec_t graph) {
  cuda_check(cudaGraphLaunch(graph, memory_.stream()), "cudaGraphLaunch");
}

bool StepRecorder::begin(const StepInputs& in, std::span<const SequenceRows> bounds) {
  if (recording_) {  // a step ended early, by an error
    cudaGraph_t part = nullptr;
    cudaStreamEndCapture(stream_, &part);
    if (part) cudaGraphDestroy(part);
    recording_ = false;
  }
  shape_.clear();
  if (!enabled_ || !in.repeatable || bounds.empty() || in.tokens.size() > kMostRows) return false;
  if (generation_ != memory_.generation() || graphs_.size() > kMostGraphs) forget();
  generation_ = memory_.generation();
  shape_.push_back(static_cast<int64_t>(in.logit_rows.size()));
  shape_.push_back(bounds[0].start + bounds[0].rows);
  for (const SequenceRows& s : bounds) shape_.push_back(s.rows);
  const auto [known, first_time] = graphs_.emplace(shape_, nullptr);
  if (first_time) return false;
  if (known->second) {
    launch(known->second);
    return true;
  }
  cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  recording_ = true;
  return false;
}

void StepRecorder::end() {
  if (!recording_) {  // what the first time allocated is no reason to forget it
    if (!shape_.empty() && generation_ != memory_.generation()) {
      forget();
      graphs_.emplace(shape_, nullptr);
      generation_ = memory_.generation();
    }
    return;
  }
  recording_ = false;
  cudaGraph_t graph = nullptr;
  cuda_check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(status, "cudaGraphInstantiate");
  graphs_[shape_] = exec;
  launch(exec);
}

}  // namespace perigee::cuda
