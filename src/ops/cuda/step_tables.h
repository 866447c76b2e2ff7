// StepTables: what a step's stages read of the host's spans, on the device. One copy a step brings all of it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <unordered_map>
#include <vector>

#include "ops/cuda/device_memory.h"
#include "ops/ops.h"

namespace perigee::cuda {

// Which rows are whose.
struct RowsView {
  const SequenceRows* sequences;   // [count]
  const int32_t* sequence_of_row;  // [rows]
  int count, rows;

#ifdef __CUDACC__
  __device__ int64_t position(int row) const {
    const SequenceRows& s = sequences[sequence_of_row[row]];
    return s.start + (row - s.first_row);
  }
#endif
};

// One attention layer's pages of all sequences. Offsets and formats are the same for all of a step.
struct PagesView {
  uint8_t* const* const* page;  // [sequences] → [pages]
  int64_t latent_offset, index_offset;
  LatentFormat latent_format;
  IndexKeyFormat index_format;
  float latent_scale;

#ifdef __CUDACC__
  __device__ uint8_t* latent(int sequence, int64_t i) const { return page[sequence][i] + latent_offset; }
  __device__ uint8_t* index_key(int sequence, int64_t i) const { return page[sequence][i] + index_offset; }
#endif
};

// KdaSlot with the base as a value.
struct SlotView {
  const float* state;
  int64_t state_stride;
  float* stored;
  int64_t stored_stride;
  int64_t base;
  bf16* conv_input;
  bf16* k;
  float *g, *w, *T;  // g: KdaSlot::G
};

class StepTables {
 public:
  explicit StepTables(DeviceMemory& memory) : memory_(memory) {}
  StepTables(const StepTables&) = delete;

  // Waits for no step but the one before the last, whose page-locked tables it takes over.
  void begin(const StepInputs& inputs);

  // The step's sequences for sizing launches and workspaces: their rows, and starts that are at least as late
  // as the true ones. A repeatable step gets the next power of two for all, so that steps of one shape are
  // launched alike.
  std::span<const SequenceRows> bounds() const { return bounds_; }
  RowsView rows() const { return rows_; }
  // Of spans that begin() was given.
  const int32_t* tokens(std::span<const int32_t> tokens) const { return find<int32_t>(tokens.data()); }
  const int* logit_rows(std::span<const int> rows) const { return find<int>(rows.data()); }
  const SlotView* slots(std::span<const KdaSlot> slots) const { return find<SlotView>(slots.data()); }
  PagesView pages(std::span<const PageTable> pages) const;

 private:
  template <typename T>
  T* put(const void* host_key, int64_t count);
  template <typename T>
  const T* find(const void* host_key) const {
    return reinterpret_cast<const T*>(device_.data() + offset_of(host_key));
  }
  int64_t offset_of(const void* host_key) const;
  template <typename T>
  const T* on_device(const T* staged) const {
    return reinterpret_cast<const T*>(device_.data() + (reinterpret_cast<const std::byte*>(staged) - host_));
  }
  void take_staged(int64_t bytes);

  DeviceMemory& memory_;
  struct Staged {
    MemoryBlock block;  // page-locked
    int64_t mark = 0;   // of its copy to the device
  };
  std::array<Staged, 2> staged_;  // of this step and the one before
  int64_t steps_ = 0;
  std::byte* host_ = nullptr;  // this step's
  int64_t used_ = 0;
  MemoryBlock device_;
  std::unordered_map<const void*, int64_t> offset_;  // by the address of the host's span
  RowsView rows_{};
  std::vector<SequenceRows> bounds_;
  uint8_t* const* const* pages_ = nullptr;  // on the device
};

}  // namespace perigee::cuda
