// Descriptions of matrices for the copy engine (bulk_copies.cuh), made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "formats/bf16.h"

namespace perigee::cuda {

// Boxes of 64 rows × 64 columns of one segment, in shared memory as a tile of mma.cuh, at (column in the
// segment, segment, row, batch): zeros where there is no such element. Of `batches` matrices [rows, columns]
// in device memory, columns in equal segments (segments.h). Strides are in elements and multiples of 8,
// `data` is 16-byte aligned. Throws when the driver refuses.
CUtensorMap tile_map(const bf16* data, int columns, int rows, int batches, int64_t row_stride,
                     int64_t batch_stride);

}  // namespace perigee::cuda
