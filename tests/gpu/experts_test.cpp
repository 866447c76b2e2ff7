// moe_experts on the device: against the plain CPU stage, and by bits what a row may not depend on. Batches
// lie on both sides of what each kernel takes, so that a row alone and a row of many are different kernels.
#include <functional>
#include <utility>

#include "gpu/shared_weights.h"
#include "ops/expert_addresses.h"

namespace perigee {
namespace {

using test::gpu, test::poisoned, test::Random, test::rows_of, test::same_rows, test::Shared, test::shared,
    test::SharedMatrix, test::SharedMxfp4;

// Both devices round to bf16 at the same places; sums differ in the order of additions, so that a few values
// fall to the other side.
constexpr double kOtherOrder = 1e-3;

struct Sizes {
  int in, intermediate, experts, choices, rows;
};

// The experts of row r, ascending.
using Chooser = std::function<std::vector<int32_t>(int r)>;

// Some experts are used by most rows, one by none where there is a choice.
Chooser uneven(Random& random, const Sizes& s) {
  return [&random, s](int) {
    std::vector<int32_t> chosen;
    for (int e = 0; static_cast<int>(chosen.size()) < s.choices; ++e) {
      const int wanted = s.choices - static_cast<int>(chosen.size());
      if (s.experts - e == wanted || (e != 1 && random.below(s.experts + s.choices) < 2 * s.choices))
        chosen.push_back(e);
    }
    return chosen;
  };
}

constexpr int kDistinct = 61;

template <typename M>
struct Case {
  Sizes s;
  std::vector<M> matrices;  // gate, up, down of each expert; beyond kDistinct they repeat
  MoeWeights w;
  Shared<bf16> block;  // bf16 weights side by side, as loaded ones are
  Shared<ExpertAddresses> addresses;
  Shared<bf16> z;
  Shared<int32_t> experts;
  Shared<float> factor;
  int lanes = 1;
  bool lanes_expert = false;

  Case(Random& random, const Sizes& sizes, const Chooser& choose) : s(sizes) {
    const int distinct = std::min(s.experts, kDistinct);
    matrices.reserve(size_t{3} * distinct);
    for (int e = 0; e < distinct; ++e) {
      matrices.emplace_back(random, s.intermediate, s.in);
      matrices.emplace_back(random, s.intermediate, s.in);
      matrices.emplace_back(random, s.in, s.intermediate);
    }
    if constexpr (std::is_same_v<M, SharedMatrix>) {
      block.reserve(size_t{3} * distinct * s.in * s.intermediate);
      for (const M& m : matrices) block.insert(block.end(), m.data.begin(), m.data.end());
      const bf16* at = block.data();
      for (M& m : matrices) m.view = std::exchange(at, at + m.data.size());
    }
    using View = std::conditional_t<std::is_same_v<M, SharedMxfp4>, Mxfp4Linear, Linear>;
    for (int e = 0; e < s.experts; ++e) {
      const M* m = &matrices[size_t{3} * (e % kDistinct)];
      w.experts.push_back({.gate = View(m[0]), .up = View(m[1]), .down = View(m[2])});
    }
    addresses = shared(expert_addresses(w.experts));
    w.addresses = addresses.data();
    z = shared(random.bf16s(int64_t{s.rows} * s.in, 2.0f));
    experts.reserve(size_t(s.rows) * s.choices);
    for (int r = 0; r < s.rows; ++r) {
      const std::vector<int32_t> chosen = choose(r);
      experts.insert(experts.end(), chosen.begin(), chosen.end());
    }
    factor = shared(random.floats(int64_t{s.rows} * s.choices));
  }

  // [lanes, rows, in] of rows [first, first + rows).
  Shared<float> run(Backend& backend, int first, int rows) const {
    const MoeConfig config{
        .num_experts = s.experts, .experts_per_token = s.choices, .intermediate_size = s.intermediate};
    const Shared<bf16> in = rows_of(z, first, rows, s.in);
    const Shared<int32_t> ids = rows_of(experts, first, rows, s.choices);
    const Shared<float> factors = rows_of(factor, first, rows, s.choices);
    Shared<float> partial = poisoned<float>(int64_t{lanes} * rows * s.in);
    backend.moe_experts({.weights = w,
                         .config = config,
                         .activation = {.kind = Activation::kSitu},
                         .z = in.data(),
                         .experts = ids.data(),
                         .expert_weight = factors.data(),
                         .partial = partial.data(),
                         .rows = rows,
                         .in = s.in,
                         .lanes = lanes,
                         .lanes_expert = lanes_expert});
    gpu().memory().wait();
    return partial;
  }
  Shared<float> all() const { return run(gpu(), 0, s.rows); }

  // The first rows; an fp32 sum is the same in a batch of any size on the CPU too.
  void expect_accurate(int rows, const std::string& what) const {
    cpu::PlainBackend plain(8);
    EXPECT_LT(test::relative_l2(run(gpu(), 0, rows), run(plain, 0, rows)), kOtherOrder) << what;
  }
  // Batches of these sizes, at the beginning and at the end of all rows.
  void expect_same_in_batches_of(std::initializer_list<int> sizes, const std::string& what) const {
    const Shared<float> together = all();
    for (int rows : sizes) {
      for (int first : {0, s.rows - rows})
        EXPECT_TRUE(same_rows(run(gpu(), first, rows), together, lanes, first, s.in))
            << what << ", " << rows << " rows from " << first;
    }
  }
};

std::string named(const Sizes& s, int lanes, bool by_expert) {
  return std::to_string(s.in) + " to " + std::to_string(s.intermediate) + ", " + std::to_string(s.experts) +
         " experts, " + std::to_string(s.rows) + " rows, " + std::to_string(lanes) +
         (by_expert ? " lanes of experts" : " lanes of columns");
}

template <typename M>
void test_lanes(const Sizes& s, std::initializer_list<int> sizes, int accurate_rows) {
  Random random(static_cast<uint32_t>(s.in + s.intermediate + s.rows));
  Case<M> c(random, s, uneven(random, s));
  for (const auto& [lanes, by_expert] : {std::pair(1, false), {4, false}, {4, true}}) {
    const bool cuts_blocks = !by_expert && s.intermediate / lanes % kMxfp4Block != 0;
    if (std::is_same_v<M, SharedMxfp4> && cuts_blocks) continue;  // the stage refuses it
    c.lanes = lanes;
    c.lanes_expert = by_expert;
    c.expect_accurate(accurate_rows, named(s, lanes, by_expert));
    c.expect_same_in_batches_of(sizes, named(s, lanes, by_expert));
  }
}

TEST(MoeExpertsOnDevice, Bf16) {
  test_lanes<SharedMatrix>({128, 256, 12, 5, 200}, {1, 3, 8, 17, 64, 65}, 200);
}

TEST(MoeExpertsOnDevice, Mxfp4) {
  test_lanes<SharedMxfp4>({128, 256, 12, 5, 200}, {1, 3, 8, 17, 64, 65}, 200);
}

// K of many chunks, the last one whole or not, which pipelines of every depth divide; outputs of several
// parts, the last one whole or not. A step of all rows decodes weights once for many, one of 21 does not.
TEST(MoeExpertsOnDevice, Mxfp4InManyChunksAndParts) {
  for (const Sizes& s : {Sizes{1184, 1152, 4, 3, 70}, Sizes{384, 512, 4, 3, 70}, Sizes{992, 416, 4, 3, 70},
                         Sizes{608, 640, 4, 3, 70}})
    test_lanes<SharedMxfp4>(s, {1, 2, 21, 22}, 12);
}

// More entries than the kernel for few may be given, though an expert has few rows; more experts than the
// threads that count them.
TEST(MoeExpertsOnDevice, Mxfp4ManyEntriesAndExperts) {
  test_lanes<SharedMxfp4>({64, 64, 256, 8, 300}, {1, 255, 256, 257}, 300);
  test_lanes<SharedMxfp4>({32, 32, 1100, 8, 300}, {1, 40, 256}, 300);
}

// One expert has all rows, so that its last tile has any number of them; the others have none.
TEST(MoeExpertsOnDevice, OneExpertTakesAll) {
  const Sizes s{160, 224, 5, 1, 400};
  const auto third = [](int) { return std::vector<int32_t>{3}; };
  Random random(61);
  const Case<SharedMxfp4> packed(random, s, third);
  packed.expect_accurate(400, "mxfp4");
  packed.expect_same_in_batches_of({1, 9, 80, 81, 128, 129, 160, 161, 192, 193, 225, 257, 289, 320, 321},
                                   "mxfp4");
  const Case<SharedMatrix> dense(random, s, third);
  dense.expect_accurate(400, "bf16");
  dense.expect_same_in_batches_of({1, 9, 44, 79, 319, 324, 325, 399}, "bf16");
}

// The kernel for many rows: outputs that end inside a block and inside a cluster, K that ends inside a stage,
// one segment and eight, several tiles of an expert.
TEST(MoeExpertsOnDevice, Bf16ManyRows) {
  for (const Sizes& s :
       {Sizes{1096, 352, 4, 2, 330}, Sizes{2048, 160, 4, 2, 330}, Sizes{200, 1120, 4, 2, 330}})
    test_lanes<SharedMatrix>(s, {1, 7, 30, 129, 140}, 24);
}

// Scale codes of every kind: 0 counts as zero, 255 is NaN whatever it scales, those above 128 take a second
// factor. The first expert's rows stay finite; the second has a NaN in its gate, which reaches all outputs;
// the third two in `down`, which reach theirs.
TEST(MoeExpertsOnDevice, Mxfp4ScaleCodes) {
  const Sizes s{160, 96, 3, 1, 60};
  Random random(71);
  Case<SharedMxfp4> c(random, s, [](int r) { return std::vector<int32_t>{r % 3}; });
  const auto set = [&](int matrix, int row, int block, uint8_t code, int only = -1) {
    SharedMxfp4& m = c.matrices[matrix];
    const int64_t at = int64_t{row} * m.in / kMxfp4Block + block;
    m.scale[at] = code;
    if (only < 0) return;  // else: of the block's values one alone, ½, or none
    std::fill_n(&m.packed[at * kMxfp4Block / 2], kMxfp4Block / 2, uint8_t{0});
    if (only < kMxfp4Block) m.packed[at * kMxfp4Block / 2 + only / 2] = 1;
  };
  constexpr uint8_t kCodes[] = {0, 1, 2, 126, 127, 128, 129, 130, 200};
  for (int i = 0; i < 9; ++i) {
    for (int matrix = 0; matrix < 2; ++matrix) set(matrix, 3 * i + matrix, i % 5, kCodes[i]);
    set(2, 5 * i, i % 3, kCodes[i]);
  }
  set(0, 40, 4, 254, 6), set(1, 41, 3, 254, 0);
  set(3, 5, 1, 255), set(8, 7, 0, 255);
  set(8, 9, 1, 255, kMxfp4Block), set(8, 11, 2, 254, kMxfp4Block);
  for (bf16& x : c.z) x = float_to_bf16(bf16_to_float(x) * 0.1f);  // times 2^126 stays finite

  cpu::PlainBackend plain(2);
  const Shared<float> got = c.all(), want = c.run(plain, 0, s.rows);
  for (int r = 0; r < s.rows; ++r) {
    for (int d = 0; d < s.in; ++d) {
      const bool nan = r % 3 == 1 || (r % 3 == 2 && (d == 7 || d == 9));
      ASSERT_EQ(std::isnan(want[r * s.in + d]), nan) << "row " << r << ", output " << d;
      ASSERT_EQ(std::isnan(got[r * s.in + d]), nan) << "row " << r << ", output " << d;
    }
  }
  // Output by output, because some are 2^70 times the others; each from two rounded values, and over few
  // rows.
  for (int expert : {0, 2}) {
    for (int d = 0; d < s.in; ++d) {
      double error = 0, norm = 0;
      for (int r = expert; r < s.rows; r += 3) {
        const double x = got[r * s.in + d], y = want[r * s.in + d];
        if (!std::isnan(y)) error += (x - y) * (x - y), norm += y * y;
      }
      EXPECT_LE(error, norm * test::kBf16 * test::kBf16) << "expert " << expert << ", output " << d;
    }
  }
  c.expect_same_in_batches_of({1, 2, 3, 48}, "scale codes");  // of 60 rows an expert's weights serve many
}

// More rows than a grid may be high.
TEST(MoeExpertsOnDevice, MoreRowsThan65535) {
  const Sizes s{64, 64, 2, 1, 65'600};
  const auto choose = [](int r) { return std::vector<int32_t>{r / 3 % 2}; };
  Random random(81);
  Case<SharedMxfp4> packed(random, s, choose);
  packed.expect_same_in_batches_of({20}, "mxfp4");
  packed.lanes = 2, packed.lanes_expert = true;
  packed.expect_same_in_batches_of({20}, "mxfp4, lanes of experts");
  const Case<SharedMatrix> dense(random, s, choose);
  dense.expect_same_in_batches_of({20}, "bf16");
}

}  // namespace
}  // namespace perigee
