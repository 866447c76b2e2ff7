// SequenceCache as a view on shared rows: nobody sees another's writes, and every byte goes back.
#include "cache/sequence_cache.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "small_pool.h"

namespace perigee {
namespace {

using test::SmallPool;

// What a step does to a cache, without the arithmetic: every record, conv input and state written gets
// `mark`.
void step(SequenceCache& cache, const CacheShape& shape, int64_t count, int mark, int64_t drafts = 0) {
  const int64_t start = cache.length(), end = start + count, accepted = end - drafts;
  cache.reserve(end, accepted);
  for (size_t layer = 0; layer < shape.attention_has_index.size(); ++layer) {
    const PageTable pages = cache.pages(static_cast<int>(layer));
    for (int64_t p = start; p < end; ++p) {
      const int in_page = static_cast<int>(p % kPageTokens);
      std::memset(pages.latent(p / kPageTokens) + in_page * latent_bytes(shape.latent_format), mark,
                  latent_bytes(shape.latent_format));
      if (!pages.has_index) continue;
      std::memset(pages.index_key(p / kPageTokens) + index_value_offset(shape.index_format, in_page), mark,
                  index_key_value_bytes(shape.index_format));
      std::memset(pages.index_key(p / kPageTokens) + index_scale_offset(shape.index_format, in_page), mark,
                  index_key_scale_bytes(shape.index_format));
    }
  }
  const int64_t D = shape.kda_heads * 128;
  for (int layer = 0; layer < shape.kda_layers; ++layer) {
    const KdaSlot slot = cache.slot(layer);
    for (int64_t p = std::max(start, end - KdaSlot::kRing); p < end; ++p)
      std::memset(slot.conv_input + p % KdaSlot::kRing * 3 * D, mark, 3 * D * 2);
    const int64_t base = accepted / kChunk * kChunk;
    if (base <= *slot.base) continue;
    ASSERT_TRUE(slot.stored);
    for (int head = 0; head < shape.kda_heads; ++head)
      std::memset(slot.stored + head * slot.stored_stride, mark, kKdaStateBytes);
    *slot.base = base;
  }
  cache.set_length(end);
}

// The mark of every position's latent and index key.
std::vector<int> marks(const SequenceCache& cache, const CacheShape& shape) {
  std::vector<int> out;
  for (int64_t p = 0; p < cache.length(); ++p) {
    std::optional<int> mark;
    for (size_t layer = 0; layer < shape.attention_has_index.size(); ++layer) {
      const PageTable pages = cache.pages(static_cast<int>(layer));
      const int in_page = static_cast<int>(p % kPageTokens);
      const uint8_t* latent = pages.latent(p / kPageTokens) + in_page * latent_bytes(shape.latent_format);
      for (int i = 0; i < latent_bytes(shape.latent_format); ++i) {
        if (!mark) mark = latent[i];
        EXPECT_EQ(latent[i], *mark) << "latent of position " << p;
      }
      if (!pages.has_index) continue;
      const uint8_t* page = pages.index_key(p / kPageTokens);
      for (int i = 0; i < index_key_value_bytes(shape.index_format); ++i)
        EXPECT_EQ(page[index_value_offset(shape.index_format, in_page) + i], *mark);
      for (int i = 0; i < index_key_scale_bytes(shape.index_format); ++i)
        EXPECT_EQ(page[index_scale_offset(shape.index_format, in_page) + i], *mark);
    }
    out.push_back(*mark);
  }
  return out;
}

// The mark of the state that all layers and heads read.
int state_mark(SequenceCache& cache, const CacheShape& shape) {
  const int mark = *reinterpret_cast<const uint8_t*>(cache.slot(0).state);
  for (int layer = 0; layer < shape.kda_layers; ++layer) {
    const KdaSlot slot = cache.slot(layer);
    for (int head = 0; head < shape.kda_heads; ++head) {
      const uint8_t* S = reinterpret_cast<const uint8_t*>(slot.state + head * slot.state_stride);
      for (int64_t i = 0; i < kKdaStateBytes; ++i) EXPECT_EQ(S[i], mark);
    }
  }
  return mark;
}

int conv_mark(SequenceCache& cache, const CacheShape& shape, int64_t position) {
  const int64_t D = shape.kda_heads * 128;
  const auto at = [&](int layer) {
    return reinterpret_cast<const uint8_t*>(cache.slot(layer).conv_input + position % KdaSlot::kRing * 3 * D);
  };
  const int mark = at(0)[0];
  for (int layer = 0; layer < shape.kda_layers; ++layer)
    for (int64_t i = 0; i < 3 * D * 2; ++i) EXPECT_EQ(at(layer)[i], mark);
  return mark;
}

std::vector<int> pieces(std::initializer_list<std::pair<int64_t, int>> list) {
  std::vector<int> out;
  for (const auto& [count, mark] : list) out.insert(out.end(), count, mark);
  return out;
}

class SequenceCacheTest : public testing::Test {
 protected:
  void expect_holders(std::initializer_list<const SequenceCache*> sequences,
                      std::initializer_list<const Checkpoint*> checkpoints = {}) {
    std::vector<int64_t> references(pool_.rows(), 0);
    for (const SequenceCache* s : sequences) s->count_references(references);
    for (const Checkpoint* c : checkpoints)
      for (const Row& row : c->rows) ++references[row.id()];
    pool_.check_integrity(references);
  }

  SmallPool small_{40};
  CachePool& pool_ = small_.pool;
  const CacheShape shape_ = test::small_shape();
};

TEST_F(SequenceCacheTest, TakesWhatItSaysAndGivesItBack) {
  {
    SequenceCache cache(pool_);
    EXPECT_EQ(cache.rows_needed(10, 10), 1);  // no chunk end yet, so no state
    step(cache, shape_, 10, 1);
    EXPECT_EQ(pool_.free_rows(), 39);
    EXPECT_EQ(cache.rows_needed(300, 300), 2 + pool_.plan().state_rows());
    step(cache, shape_, 290, 2);
    EXPECT_EQ(pool_.free_rows(), 37 - pool_.plan().state_rows());
    EXPECT_EQ(cache.rows_needed(301, 301), 0);  // the state is its own: chunk ends go in place
    EXPECT_EQ(cache.base(), 288);
    EXPECT_EQ(marks(cache, shape_), pieces({{10, 1}, {290, 2}}));
    EXPECT_EQ(pool_.free_slots(), 3);
    expect_holders({&cache});
  }
  EXPECT_EQ(pool_.free_rows(), 40);
  EXPECT_EQ(pool_.free_slots(), 4);
  expect_holders({});
}

TEST_F(SequenceCacheTest, TheStateBeforeTheFirstChunkEndIsZero) {
  SequenceCache cache(pool_);
  step(cache, shape_, 15, 1);
  EXPECT_EQ(state_mark(cache, shape_), 0);
  EXPECT_EQ(cache.slot(0).stored, nullptr);
  EXPECT_TRUE(cache.checkpoint().rows.empty());
}

TEST_F(SequenceCacheTest, AHitCopiesThePartOfARowThatItGoesOnIn) {
  SequenceCache first(pool_);
  step(first, shape_, 200, 1);
  const Checkpoint checkpoint = first.checkpoint();
  ASSERT_EQ(checkpoint.position, 192);
  const std::vector<Row> rows(first.rows().begin(), first.rows().end());
  SequenceCache second(pool_, rows, checkpoint);
  EXPECT_EQ(second.length(), 192);
  EXPECT_EQ(state_mark(second, shape_), 1);
  for (int64_t p = 189; p < 192; ++p) EXPECT_EQ(conv_mark(second, shape_, p), 1);
  EXPECT_EQ(second.rows_needed(200, 200), 1);                              // the copy; no chunk end
  EXPECT_EQ(second.rows_needed(260, 260), 2 + pool_.plan().state_rows());  // and the next block, and a state
  step(second, shape_, 68, 2);
  step(first, shape_, 68, 3);  // in place: it is the row's owner
  EXPECT_EQ(marks(second, shape_), pieces({{192, 1}, {68, 2}}));
  EXPECT_EQ(marks(first, shape_), pieces({{200, 1}, {68, 3}}));
  EXPECT_EQ(state_mark(first, shape_), 3);
  EXPECT_EQ(state_mark(second, shape_), 2);
  // What was shared stays as it was.
  SequenceCache third(pool_, rows, checkpoint);
  EXPECT_EQ(marks(third, shape_), pieces({{192, 1}}));
  EXPECT_EQ(state_mark(third, shape_), 1);
  EXPECT_EQ(third.rows()[0].id(), first.rows()[0].id());
  EXPECT_EQ(first.rows()[1].id(), rows[1].id());
  EXPECT_NE(second.rows()[1].id(), rows[1].id());
}

TEST_F(SequenceCacheTest, ACheckpointStaysWhenItsSequenceGoesOn) {
  SequenceCache cache(pool_);
  step(cache, shape_, 40, 1);
  Checkpoint checkpoint = cache.checkpoint();
  EXPECT_EQ(checkpoint.position, 32);
  expect_holders({&cache}, {&checkpoint});
  EXPECT_EQ(cache.rows_needed(47, 47), 0);
  EXPECT_EQ(cache.rows_needed(48, 48), pool_.plan().state_rows());
  EXPECT_EQ(cache.rows_needed(48, 47), 0);  // the row that would end the chunk may be dropped
  step(cache, shape_, 8, 2);
  EXPECT_EQ(state_mark(cache, shape_), 2);
  SequenceCache from(pool_, {cache.rows().begin(), cache.rows().end()}, checkpoint);
  EXPECT_EQ(state_mark(from, shape_), 1);
  for (int64_t p = 29; p < 32; ++p) EXPECT_EQ(conv_mark(from, shape_, p), 1);
  checkpoint = {};
  expect_holders({&cache, &from});
}

TEST_F(SequenceCacheTest, ForksShareUntilTheyPart) {
  SequenceCache cache(pool_);
  step(cache, shape_, 150, 1);
  SequenceCache copy = cache.fork();
  EXPECT_EQ(copy.rows_needed(151, 151), 1);
  EXPECT_EQ(cache.rows_needed(151, 151), 0);
  step(cache, shape_, 20, 2);
  step(copy, shape_, 20, 3);
  EXPECT_EQ(marks(cache, shape_), pieces({{150, 1}, {20, 2}}));
  EXPECT_EQ(marks(copy, shape_), pieces({{150, 1}, {20, 3}}));
  EXPECT_EQ(state_mark(cache, shape_), 2);
  EXPECT_EQ(state_mark(copy, shape_), 3);
  EXPECT_EQ(conv_mark(copy, shape_, 149), 1);
  EXPECT_EQ(conv_mark(copy, shape_, 150), 3);
  expect_holders({&cache, &copy});
}

TEST_F(SequenceCacheTest, CheckpointsOfForksHaveTheirConvInputs) {
  SequenceCache cache(pool_);
  step(cache, shape_, 48, 1);
  SequenceCache copy = cache.fork();
  const Checkpoint checkpoint = copy.checkpoint();
  SequenceCache from(pool_, {copy.rows().begin(), copy.rows().end()}, checkpoint);
  for (int64_t p = 45; p < 48; ++p) EXPECT_EQ(conv_mark(from, shape_, p), 1);
}

TEST_F(SequenceCacheTest, DroppedDraftsArePoisonedAndOverwritten) {
  SequenceCache cache(pool_);
  step(cache, shape_, 60, 1);
  step(cache, shape_, 8, 2, 7);
  cache.set_length(61);
  EXPECT_EQ(cache.pages(0).latent(0)[61 * latent_bytes(shape_.latent_format)], 0xFF);
  EXPECT_EQ(conv_mark(cache, shape_, 61), 0xFF);
  EXPECT_EQ(conv_mark(cache, shape_, 60), 2);
  EXPECT_EQ(conv_mark(cache, shape_, 45), 1);
  step(cache, shape_, 8, 3);
  EXPECT_EQ(marks(cache, shape_), pieces({{60, 1}, {1, 2}, {8, 3}}));
  EXPECT_THROW(cache.set_length(40), Error);  // below the stored chunk start
}

TEST_F(SequenceCacheTest, ReserveRefusesWithNumbersAndChangesNothing) {
  SmallPool tiny(5, 1);
  SequenceCache cache(tiny.pool);
  step(cache, shape_, 10, 1);
  try {
    cache.reserve(400, 400);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("6 cache rows needed, 4 of 5 free"), std::string::npos) << e.what();
  }
  EXPECT_EQ(tiny.pool.free_rows(), 4);
  SequenceCache other(tiny.pool);
  EXPECT_THROW(other.reserve(1, 1), Error);  // no slot
}

TEST_F(SequenceCacheTest, MovesKeepTheirRows) {
  SequenceCache cache(pool_);
  step(cache, shape_, 20, 1);
  SequenceCache moved = std::move(cache);
  step(moved, shape_, 20, 2);
  SequenceCache target(pool_);
  step(target, shape_, 5, 9);
  target = std::move(moved);
  EXPECT_EQ(marks(target, shape_), pieces({{20, 1}, {20, 2}}));
  expect_holders({&target});
}

}  // namespace
}  // namespace perigee
