#include "ops/cuda/step_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

namespace {

constexpr int64_t kAlign = 16;
constexpr int64_t kShortestBound = 1024;

int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t bytes_of(const StepInputs& in) {
  const int64_t sequences = static_cast<int64_t>(in.sequences.size());
  int64_t bytes = 2 * padded(static_cast<int64_t>(in.tokens.size()) * 4) +
                  padded(static_cast<int64_t>(in.logit_rows.size()) * 4) +
                  padded(sequences * static_cast<int64_t>(sizeof(SequenceRows)));
  bytes += static_cast<int64_t>(in.slots.size()) * padded(sequences * static_cast<int64_t>(sizeof(SlotView)));
  bytes += padded(sequences * 8);
  for (int64_t count : in.page_count) bytes += padded(count * 8);
  return bytes;
}

}  // namespace

void StepTables::take_staged(int64_t bytes) {
  Staged& staged = staged_[steps_ % 2];
  memory_.wait(staged.mark);
  if (staged.block.bytes() < bytes) staged.block = MemoryBlock(memory_.staging(), 2 * bytes);
  if (device_.bytes() < bytes) device_ = MemoryBlock(memory_, 2 * bytes);
  host_ = staged.block.data();
}

template <typename T>
T* StepTables::put(const void* host_key, int64_t count) {
  T* at = reinterpret_cast<T*>(host_ + used_);
  if (host_key) offset_[host_key] = used_;
  used_ += padded(count * static_cast<int64_t>(sizeof(T)));
  return at;
}

int64_t StepTables::offset_of(const void* host_key) const {
  const auto found = offset_.find(host_key);
  check(found != offset_.end(), "StepTables: a span that begin_step was not given");
  return found->second;
}

void StepTables::begin(const StepInputs& in) {
  ++steps_;
  take_staged(bytes_of(in));
  offset_.clear();
  used_ = 0;
  bounds_.assign(in.sequences.begin(), in.sequences.end());
  if (in.repeatable) {
    int64_t end = kShortestBound;
    for (const SequenceRows& s : in.sequences) end = std::max(end, s.start + s.rows);
    end = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(end)));
    for (SequenceRows& s : bounds_) s.start = end - s.rows;
  }
  const int64_t rows = static_cast<int64_t>(in.tokens.size()),
                sequences = static_cast<int64_t>(in.sequences.size());
  std::copy(in.tokens.begin(), in.tokens.end(), put<int32_t>(in.tokens.data(), rows));
  int32_t* sequence_of_row = put<int32_t>(nullptr, rows);
  for (int64_t s = 0; s < sequences; ++s)
    std::fill_n(sequence_of_row + in.sequences[s].first_row, in.sequences[s].rows, static_cast<int32_t>(s));
  const int64_t logits = static_cast<int64_t>(in.logit_rows.size());
  std::copy(in.logit_rows.begin(), in.logit_rows.end(), put<int>(in.logit_rows.data(), logits));
  SequenceRows* sequence = put<SequenceRows>(nullptr, sequences);
  std::copy(in.sequences.begin(), in.sequences.end(), sequence);
  for (const std::vector<KdaSlot>& layer : in.slots) {
    SlotView* out = put<SlotView>(layer.data(), sequences);
    for (const KdaSlot& s : layer) {
      *out++ = {.state = s.state,
                .state_stride = s.state_stride,
                .stored = s.stored,
                .stored_stride = s.stored_stride,
                .base = *s.base,
                .conv_input = s.conv_input,
                .k = s.k,
                .g = s.G,
                .w = s.w,
                .T = s.T};
    }
  }
  if (!in.pages.empty()) {  // the page pointers are those of every layer
    auto* tables = put<uint8_t* const*>(nullptr, sequences);
    for (int64_t s = 0; s < sequences; ++s) {
      auto* page = put<uint8_t*>(nullptr, in.page_count[s]);
      std::copy_n(in.pages[0][s].page, in.page_count[s], page);
      tables[s] = on_device(page);
    }
    pages_ = on_device(tables);
  }
  rows_ = {.sequences = on_device(sequence),
           .sequence_of_row = on_device(sequence_of_row),
           .count = static_cast<int>(sequences),
           .rows = static_cast<int>(rows)};
  cuda_check(cudaMemcpyAsync(device_.data(), host_, static_cast<size_t>(used_), cudaMemcpyHostToDevice,
                             memory_.stream()),
             "cudaMemcpyAsync of the step's tables");
  staged_[steps_ % 2].mark = memory_.mark();
}

PagesView StepTables::pages(std::span<const PageTable> pages) const {
  const PageTable& first = pages[0];
  return {.page = pages_,
          .latent_offset = first.latent_offset,
          .index_offset = first.index_offset,
          .latent_format = first.latent_format,
          .index_format = first.index_format,
          .latent_scale = first.latent_scale};
}

}  // namespace perigee::cuda
