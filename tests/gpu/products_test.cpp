// multiply(): against fp64, and the row rule by bits over both kernels and all their tile sizes.
#include "ops/cuda/products.h"

#include <cstring>

#include "gpu/shared_weights.h"
#include "ops/elementary.h"

namespace perigee {
namespace {

using test::gpu, test::Matrix, test::poisoned, test::Random, test::Shared, test::shared;

// fp32 sums of exact products: the tensor cores' accumulator truncates, a few ulps a step.
constexpr double kTensorCoreSum = 5e-6;

struct Shape {
  int outputs, k;
};
// Whole tiles, edges of both kernels, one segment to eight, K that ends inside a tile or an instruction, more
// tiles than run at once.
const Shape kShapes[] = {{128, 64}, {16, 128},   {200, 256},  {1, 96},    {24, 40},
                         {33, 520}, {300, 1056}, {130, 2304}, {64, 7168}, {9002, 512}};

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

// The kernel for many rows: outputs of several panels of clusters, the last one narrower and its last cluster
// not whole, rows of several clusters, K that ends inside a stage of one segment and of two.
TEST(ProductsOnDevice, PanelsAndTails) {
  constexpr int kMost = 650;
  for (const Shape s : {Shape{1320, 72}, Shape{1300, 2112}, Shape{2056, 264}}) {
    Random random(static_cast<uint32_t>(s.outputs));
    const Matrix m(random, s.outputs, s.k);
    const std::vector<bf16> host_x = random.bf16s(int64_t{kMost} * s.k);
    const Shared<bf16> w = shared(m.data), x = shared(host_x);
    const Shared<float> all = product(w, s, x, kMost);
    for (int row : {0, 127, 128, 255, 256, 383, 512, kMost - 1}) {
      const auto values = [&](const auto& from, int width) {
        return std::vector(from.begin() + int64_t{row} * width, from.begin() + int64_t{row + 1} * width);
      };
      EXPECT_LT(test::relative_l2(values(all, s.outputs), m * test::widen(values(host_x, s.k))),
                kTensorCoreSum)
          << s.outputs << " x " << s.k << ", row " << row;
    }
    for (int rows : {1, 64, 65, 127, 128, 129, 255, 256, 257, 385, 513}) {
      for (int first : {0, kMost - rows}) {
        const Shared<float> y = product(w, s, test::rows_of(x, first, rows, s.k), rows);
        EXPECT_TRUE(test::same_rows(y, all, 1, first, s.outputs))
            << s.outputs << " x " << s.k << ", " << rows << " rows";
      }
    }
  }
}

// Lanes are products of blocks of columns; few rows and many, K of a lane that ends inside a stage.
TEST(ProductsOnDevice, LanesAreProductsOfTheirColumns) {
  constexpr int kLanes = 4, kRows = 300;
  constexpr Shape kWhole{264, 4 * 200}, kLane{264, 200};
  Random random(21);
  const Shared<bf16> w = shared(random.bf16s(int64_t{kWhole.outputs} * kWhole.k)),
                     x = shared(random.bf16s(int64_t{kRows} * kWhole.k));
  const auto columns = [&](const Shared<bf16>& from, int lane) {
    Shared<bf16> to;
    to.reserve(from.size() / kLanes);
    for (size_t at = size_t(lane) * kLane.k; at < from.size(); at += kWhole.k)
      to.insert(to.end(), from.begin() + at, from.begin() + at + kLane.k);
    return to;
  };
  for (int rows : {1, 40, 65, kRows}) {
    Shared<float> partial = poisoned<float>(int64_t{kLanes} * rows * kWhole.outputs);
    cuda::multiply_lanes(Linear{.weight = w.data(), .out = kWhole.outputs, .in = kWhole.k}, x.data(), rows,
                         kLanes, partial.data(), gpu().memory().stream());
    gpu().memory().wait();
    for (int lane = 0; lane < kLanes; ++lane) {
      const Shared<float> alone = product(columns(w, lane), kLane, columns(x, lane), kRows);
      const Shared<float> got = test::rows_of(partial, lane * rows, rows, kWhole.outputs);
      EXPECT_TRUE(test::same_rows(got, alone, 1, 0, kWhole.outputs)) << rows << " rows, lane " << lane;
    }
  }
}

// Gate and up of several panels: a row is the same in every batch, and is act(gate x, up x).
TEST(ProductsOnDevice, GluPanelsAndTails) {
  constexpr Shape kShape{1100, 200};
  constexpr int kMost = 300;
  Random random(22);
  const Shared<bf16> gate = shared(Matrix(random, kShape.outputs, kShape.k).data),
                     up = shared(Matrix(random, kShape.outputs, kShape.k).data),
                     x = shared(random.bf16s(int64_t{kMost} * kShape.k));
  const auto glu = [&](const Shared<bf16>& rows_of_x, int rows) {
    Shared<bf16> out = poisoned<bf16>(int64_t{rows} * kShape.outputs);
    cuda::multiply_glu(Linear{.weight = gate.data(), .out = kShape.outputs, .in = kShape.k},
                       Linear{.weight = up.data(), .out = kShape.outputs, .in = kShape.k},
                       {.kind = Activation::kSilu}, rows_of_x.data(), rows, out.data(),
                       gpu().memory().stream());
    gpu().memory().wait();
    return out;
  };
  const Shared<bf16> all = glu(x, kMost);
  for (int rows : {1, 64, 65, 128, 129, 257}) {
    for (int first : {0, kMost - rows}) {
      EXPECT_TRUE(
          test::same_rows(glu(test::rows_of(x, first, rows, kShape.k), rows), all, 1, first, kShape.outputs))
          << rows << " rows from " << first;
    }
  }
  const Shared<float> of_gate = product(gate, kShape, x, kMost), of_up = product(up, kShape, x, kMost);
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i], float_to_bf16(elementary::silu(of_gate[i]) * of_up[i])) << "value " << i;
}

// Products of one input in one launch, in several, and of different inputs: each has the bits that it has
// alone, in bf16 or fp32, with its own stride, and writes nothing else.
TEST(ProductsOnDevice, SeveralAreEachAlone) {
  constexpr int kMost = 130, kPad = 8;
  constexpr int kOutputs[] = {1, 16, 17, 200, 48, 5, 130, 32, 64};  // more than one launch takes
  Random random(23);
  std::vector<Shared<bf16>> w;
  for (int k : {520, 264}) {
    for (int outputs : kOutputs) w.push_back(shared(random.bf16s(int64_t{outputs} * k)));
  }
  const Shared<bf16> x = shared(random.bf16s(int64_t{kMost} * 520));
  const auto run = [&](const std::vector<int>& which, int rows, bool together) {
    std::vector<Shared<float>> wide;
    std::vector<Shared<bf16>> narrow;
    std::vector<cuda::Product> products;
    for (int i : which) {
      const int outputs = kOutputs[i % std::size(kOutputs)], k = i < int{std::size(kOutputs)} ? 520 : 264;
      const int64_t size = int64_t{rows} * (outputs + kPad);
      wide.push_back(poisoned<float>(size));
      narrow.push_back(poisoned<bf16>(size));
      const Linear weight{.weight = w[i].data(), .out = outputs, .in = k};
      products.push_back(i % 2 ? cuda::product(weight, x.data(), rows, wide.back().data())
                               : cuda::product(weight, x.data(), rows, narrow.back().data()));
      products.back().y_stride = outputs + kPad;
    }
    if (together) {
      cuda::multiply_all(products, gpu().memory().stream());
    } else {
      for (const cuda::Product& p : products) cuda::multiply(p, gpu().memory().stream());
    }
    gpu().memory().wait();
    return std::pair(wide, narrow);
  };
  for (const std::vector<int>& which : {std::vector<int>{3},
                                        {0, 1, 2, 3, 4},
                                        {0, 1, 2, 3, 4, 5, 6, 7},
                                        {0, 1, 2, 3, 4, 5, 6, 7, 8},
                                        {2, 3, 9 + 3, 9 + 4}}) {
    for (int rows : {1, 3, 8, 9, 64, 65, kMost}) {
      const auto [wide, narrow] = run(which, rows, true);
      const auto [want_wide, want_narrow] = run(which, rows, false);
      for (size_t i = 0; i < which.size(); ++i) {
        const auto same = [](const auto& a, const auto& b) {
          return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
        };
        EXPECT_TRUE(same(wide[i], want_wide[i]) && same(narrow[i], want_narrow[i]))
            << which.size() << " products, " << rows << " rows, number " << which[i];
        if (which[i] % 2) {
          EXPECT_FALSE(std::isnan(want_wide[i][0]));
        } else {
          EXPECT_FALSE(test::is_nan(want_narrow[i][0]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace perigee
