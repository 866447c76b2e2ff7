// The codecs, and exp, give the same bits on the device as on the host. Blocks and records are of finite
// values: what arithmetic on NaN or infinity leaves in a NaN's sign bit differs between devices.
#include <gtest/gtest.h>

#include "codec_battery.h"
#include "ops/elementary.h"

namespace perigee {
namespace {

template <typename Result, typename OnHost>
void expect_same(const std::vector<Result>& device, OnHost on_host) {
  int64_t differing = 0, first = -1;
  for (size_t i = 0; i < device.size(); ++i) {
    if (device[i] == on_host(static_cast<uint32_t>(i))) continue;
    if (differing++ == 0) first = static_cast<int64_t>(i);
  }
  EXPECT_EQ(differing, 0) << "of " << device.size() << " results; the first is input " << first;
}

}  // namespace

TEST(CodecsOnDevice, ElementFormats) { expect_same(scalar_battery_on_device(), scalar_battery); }

TEST(CodecsOnDevice, BlockFormats) { expect_same(block_battery_on_device(), block_battery); }

TEST(CodecsOnDevice, CacheRecords) {
  expect_same(record_battery_on_device(), [](uint32_t i) {
    RecordResult r{};
    record_battery(i, r);
    return r;
  });
}

TEST(ElementaryOnDevice, ExpHasTheBitsOfTheCpu) {
  expect_same(exp_on_device(), [](uint32_t i) { return std::bit_cast<uint32_t>(cpu::exp(exp_input(i))); });
}

}  // namespace perigee
