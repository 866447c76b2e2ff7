// Weights that both devices read.
#pragma once

#include <cmath>

#include "formats/mxfp4.h"
#include "gpu/both_devices.h"
#include "ops/fast_backends.h"

namespace perigee::test {

struct SharedMatrix {
  Shared<bf16> data;
  const bf16* view = nullptr;  // the same values elsewhere
  int out, in;
  SharedMatrix(Random& random, int out, int in)
      : data(shared(random.bf16s(int64_t{out} * in, 1.0f / std::sqrt(static_cast<float>(in))))),
        out(out),
        in(in) {}
  operator Linear() const { return {.weight = view ? view : data.data(), .out = out, .in = in}; }
};

// Every code of e2m1 under scales around in^-½, so that outputs are of order one.
struct SharedMxfp4 {
  Shared<uint8_t> packed, scale;
  int out, in;
  SharedMxfp4(Random& random, int out, int in)
      : packed(int64_t{out} * in / 2), scale(int64_t{out} * in / kMxfp4Block), out(out), in(in) {
    for (uint8_t& pair : packed) pair = static_cast<uint8_t>(random.below(256));
    const int middle = 126 - static_cast<int>(std::lround(std::log2(std::sqrt(in))));
    for (uint8_t& code : scale) code = static_cast<uint8_t>(middle - 1 + random.below(3));
    scale[0] = 0;  // counts as zero
  }
  operator Mxfp4Linear() const {
    return {.packed = packed.data(), .scale = scale.data(), .out = out, .in = in};
  }
};

template <typename T>
Shared<T> rows_of(const Shared<T>& x, int first, int rows, int width) {
  return Shared<T>(x.begin() + int64_t{first} * width, x.begin() + int64_t{first + rows} * width);
}

// Rows [first, first + part's rows) of `all` in every lane, both [lanes, rows, width]: equal bits, any NaN
// equal to any other.
template <typename T>
testing::AssertionResult same_rows(const Shared<T>& part, const Shared<T>& all, int lanes, int first,
                                   int width) {
  const int64_t rows = static_cast<int64_t>(part.size()) / lanes / width,
                all_rows = static_cast<int64_t>(all.size()) / lanes / width;
  for (int64_t i = 0; i < static_cast<int64_t>(part.size()); ++i) {
    const int64_t lane = i / width / rows, row = i / width % rows, at = i % width;
    const T got = part[i], want = all[(lane * all_rows + first + row) * width + at];
    if (std::memcmp(&got, &want, sizeof(T)) == 0 || (is_nan(got) && is_nan(want))) continue;
    return testing::AssertionFailure()
           << "lane " << lane << ", row " << first + row << ", column " << at << ": bits " << std::hex
           << bits_of(got) << " instead of " << bits_of(want);
  }
  return testing::AssertionSuccess();
}

}  // namespace perigee::test
