// multiply(): against fp64, and the row rule by bits over both kernels and all their tile sizes.
#include "ops/cuda/products.h"

#include <cstring>

#include "gpu/both_devices.h"

namespace perigee {
namespace {

using test::gpu, test::Matrix, test::poisoned, test::Random, test::Shared, test::shared;

// fp32 sums of exact products: the tensor cores' accumulator truncates, a few ulps a step.
constexpr double kTensorCoreSum = 5e-6;

struct Shape {
  int outputs, k;
};
// Whole tiles, edges of both kernels, one segment to eight, K that ends inside a tile or an instruction.
const Shape kShapes[] = {{128, 64}, {16, 128},   {200, 256},  {1, 96},
                         {33, 520}, {300, 1056}, {130, 2304}, {64, 7168}};

Shared<float> product(const Shared<bf16>& w, Shape s, const Shared<bf16>& x, int rows) {
  Shared<float> y = poisoned<float>(int64_t{rows} * s.outputs);
  cuda::multiply(Linear{.weight = w.data(), .out = s.outputs, .in = s.k}, x.data(), rows, y.data(),
                 gpu().memory().stream());
  gpu().memory().wait();
  return y;
}

TEST(ProductsOnDevice, AgainstFp64) {
  for (const Shape s : kShapes) {
    for (int rows : {3, 70, 150}) {
      Random random(static_cast<uint32_t>(s.k + rows));
      const Matrix w(random, s.outputs, s.k);
      const std::vector<bf16> x = random.bf16s(int64_t{rows} * s.k);
      const Shared<float> y = product(shared(w.data), s, shared(x), rows);
      EXPECT_LT(test::relative_l2(std::vector<float>(y.begin(), y.end()), w * test::widen(x)), kTensorCoreSum)
          << s.outputs << " x " << s.k << ", " << rows << " rows";
    }
  }
}

TEST(ProductsOnDevice, ARowIsTheSameInEveryBatch) {
  constexpr int kMost = 300;
  for (const Shape s : kShapes) {
    Random random(static_cast<uint32_t>(s.k));
    const Shared<bf16> w = shared(random.bf16s(int64_t{s.outputs} * s.k)),
                       x = shared(random.bf16s(int64_t{kMost} * s.k));
    const Shared<float> all = product(w, s, x, kMost);
    for (int rows : {1, 2, 8, 9, 16, 17, 33, 64, 65, 128, 129, 299}) {
      for (int first : {0, kMost - rows}) {
        const Shared<bf16> some(x.begin() + int64_t{first} * s.k, x.begin() + int64_t{first + rows} * s.k);
        const Shared<float> y = product(w, s, some, rows);
        ASSERT_EQ(std::memcmp(y.data(), all.data() + int64_t{first} * s.outputs, y.size() * sizeof(float)), 0)
            << s.outputs << " x " << s.k << ", " << rows << " rows from " << first;
      }
    }
  }
}

// NaN in one row reaches that row alone, and NaN behind the end of K or of the rows reaches none.
TEST(ProductsOnDevice, PoisonStaysWhereItIs) {
  constexpr Shape kShape{40, 136};
  for (int rows : {5, 100}) {
    Random random(9);
    const Shared<bf16> w = shared(random.bf16s(int64_t{kShape.outputs} * kShape.k));
    Shared<bf16> x = shared(random.bf16s(int64_t{rows + 1} * kShape.k));
    const Shared<float> want = product(w, kShape, x, rows);
    std::fill_n(x.begin() + int64_t{2} * kShape.k, kShape.k, bf16{0x7FFF});
    std::fill_n(x.begin() + int64_t{rows} * kShape.k, kShape.k, bf16{0x7FFF});
    const Shared<float> got = product(w, kShape, x, rows);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < kShape.outputs; ++o) {
        const float y = got[r * kShape.outputs + o];
        if (r == 2) {
          ASSERT_TRUE(std::isnan(y));
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(y), std::bit_cast<uint32_t>(want[r * kShape.outputs + o]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace perigee
