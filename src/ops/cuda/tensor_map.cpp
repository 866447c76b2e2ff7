#include "ops/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/segments.h"

namespace perigee::cuda {
namespace {

constexpr cuuint32_t kTileSide = 64;
using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver by name: the program starts on machines without a driver too.
Encode encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cuda_check(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess)
    fail(ErrorCode::kUnsupported,
         "the GPU driver lacks cuTensorMapEncodeTiled; install one of CUDA 12.0 or newer");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tile_map(const bf16* data, int columns, int rows, int batches, int64_t row_stride,
                     int64_t batch_stride) {
  static const Encode encode = encode_function();
  const auto bytes = [](int64_t values) { return static_cast<cuuint64_t>(values) * sizeof(bf16); };
  constexpr int64_t kUnused = 8;  // a stride of one batch alone: any but 0
  const int segments = segments_of(columns), length = columns / segments;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(segments),
                               static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(batches)};
  const cuuint64_t strides[3] = {bytes(length), bytes(row_stride),
                                 bytes(batches > 1 ? batch_stride : kUnused)};
  const cuuint32_t box[4] = {kTileSide, 1, kTileSide, 1}, step[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<bf16*>(data), sizes, strides, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::kInternal,
         "cuTensorMapEncodeTiled refused a matrix [{}, {}] × {} with row stride {} and batch stride {}: "
         "error {}",
         rows, columns, batches, row_stride, batch_stride, static_cast<int>(result));
  }
  return map;
}

}  // namespace perigee::cuda
