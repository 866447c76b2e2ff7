// Tiles beside the model: made, kept, read back, and made anew when the file is not what it should be.
#include "engine/tile_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/tensor.h"
#include "model/temporary_folder.h"
#include "ops/cpu/fast/backend.h"
#include "support/models.h"

namespace perigee {
namespace {

namespace fs = std::filesystem;

class TileWeights : public testing::Test {
 protected:
  TileWeights() : backend(2, *cpu::find_kernels("avx2")) {}

  Weights weights(uint64_t seed = 7) {
    return load_weights("", test::small_config("k31"),
                        {.format = LoadFormat::kDummy, .seed = seed, .show_progress = false});
  }
  Weights tiled(const ReductionPlan& plan = {}, uint64_t seed = 7, const std::string& at = "") {
    Weights w = weights(seed);
    tile_weights(w, backend, plan,
                 {.folder = at.empty() ? folder.path() : at,
                  .threads = 2,
                  .smallest_file = 1,
                  .show_progress = false});
    return w;
  }
  std::string file() { return folder.path() + "/" + tile_file_name(weights(), backend); }
  std::string bytes() {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void overwrite(const std::string& text) { std::ofstream(file(), std::ios::binary) << text; }

  // Every matrix's tiles against those made of it alone.
  void expect_right(Weights& w) {
    int matrices = 0;
    for_each_matrix(w, [&](AnyMatrix matrix, ColumnLanes) {
      std::visit(
          [&](auto* m) {
            ASSERT_NE(m->tiles.data, nullptr);
            Buffer want(backend.tile_bytes(*m, m->tiles.segments));
            backend.tile(*m, m->tiles.segments, want.data());
            ASSERT_EQ(std::memcmp(want.data(), m->tiles.data, want.size()), 0);
            ++matrices;
          },
          matrix);
    });
    EXPECT_GT(matrices, 100);
  }

  TemporaryFolder folder;
  cpu::FastBackend backend;
};

TEST_F(TileWeights, AreKeptAndReadBack) {
  Weights made = tiled();
  expect_right(made);
  ASSERT_TRUE(fs::exists(file()));
  // The second start reads the file: what it finds there is what it uses.
  const auto time = fs::last_write_time(file());
  Weights read = tiled();
  expect_right(read);
  EXPECT_EQ(fs::last_write_time(file()), time);
  for (const auto& entry : fs::directory_iterator(folder.path())) EXPECT_EQ(entry.path(), file());
}

TEST_F(TileWeights, ADamagedFileIsReplaced) {
  tiled();
  const std::string whole = bytes();
  std::string flipped = whole, cut = whole.substr(0, whole.size() - 1), wrong_key = whole;
  flipped[whole.size() / 2] ^= 1;
  wrong_key[wrong_key.find("weights ") + 8] ^= 1;
  for (const std::string& bad : {flipped, cut, wrong_key, std::string(), whole + "x"}) {
    overwrite(bad);
    Weights w = tiled();
    expect_right(w);
    EXPECT_EQ(bytes() == whole, true) << "the file was not replaced";
  }
}

TEST_F(TileWeights, OtherLanesOrWeightsReplaceOrStandBeside) {
  tiled();
  Weights lanes = tiled({.lanes = 2});
  expect_right(lanes);
  Weights other = tiled({}, 8);
  expect_right(other);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST_F(TileWeights, AFolderThatCannotBeWrittenCostsOneLine) {
  testing::internal::CaptureStderr();
  Weights w = tiled({}, 7, folder.path() + "/absent");
  const std::string text = testing::internal::GetCapturedStderr();
  expect_right(w);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("not kept"), std::string::npos) << text;
}

TEST_F(TileWeights, SmallModelsAndPlainBackendsKeepNoFile) {
  Weights w = weights();
  tile_weights(w, backend, {}, {.folder = folder.path(), .threads = 2, .show_progress = false});
  expect_right(w);
  cpu::PlainBackend plain(1);
  Weights p = weights();
  tile_weights(p, plain, {},
               {.folder = folder.path(), .threads = 2, .smallest_file = 1, .show_progress = false});
  EXPECT_EQ(p.lm_head.tiles.data, nullptr);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace perigee
