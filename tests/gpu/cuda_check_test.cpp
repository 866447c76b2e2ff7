// A CUDA failure reaches the caller as perigee::Error with the call and the remedy in its message.
#include "ops/cuda/cuda_check.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/cuda/device_array.h"

namespace perigee::cuda {

TEST(CudaCheck, NamesCallAndRemedy) {
  try {
    DeviceArray<char> too_large(size_t{1} << 50);
    FAIL() << "a petabyte was allocated";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("cudaMalloc at "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("free memory on the device"), std::string::npos) << e.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);  // also clears it for the tests after
}

}  // namespace perigee::cuda
