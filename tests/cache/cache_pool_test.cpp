// The pool: counted rows, ids that depend on the history alone, 64-bit addresses, freed bytes that hold NaN.
#include "cache/cache_pool.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "small_pool.h"

namespace perigee {
namespace {

using test::SmallPool;

std::vector<int64_t> nobody(const CachePool& pool) { return std::vector<int64_t>(pool.rows(), 0); }

TEST(CachePool, RowsAreTakenLowestFirstAndFreedByTheLastHolder) {
  SmallPool small(4);
  CachePool& pool = small.pool;
  EXPECT_EQ(pool.free_rows(), 4);
  Row a = pool.take_row(), b = pool.take_row();
  EXPECT_EQ(a.id(), 0);
  EXPECT_EQ(b.id(), 1);
  EXPECT_FALSE(a.shared());
  Row c = a;
  EXPECT_TRUE(a.shared());
  EXPECT_EQ(pool.references(0), 2);
  a = Row();
  EXPECT_EQ(pool.free_rows(), 2);
  c = std::move(b);
  EXPECT_EQ(pool.free_rows(), 3);
  EXPECT_EQ(c.id(), 1);
  const Row d = pool.take_row(), e = pool.take_row(), f = pool.take_row();
  EXPECT_EQ(d.id(), 0);
  EXPECT_EQ(e.id(), 2);
  EXPECT_EQ(f.id(), 3);
  EXPECT_FALSE(pool.take_row());
  const Row& self = c;
  c = self;
  EXPECT_EQ(pool.references(1), 1);
}

TEST(CachePool, SlotsToo) {
  SmallPool small(1, 2);
  Slot a = small.pool.take_slot();
  {
    const Slot b = small.pool.take_slot();
    EXPECT_EQ(b.id(), 1);
    EXPECT_EQ(b.data() - a.data(), small.pool.plan().slot_bytes());
    EXPECT_FALSE(small.pool.take_slot());
  }
  EXPECT_EQ(small.pool.free_slots(), 1);
  a = small.pool.take_slot();
  EXPECT_EQ(a.id(), 1);
  EXPECT_EQ(small.pool.free_slots(), 1);
}

TEST(CachePool, BytesReportedAreBytesReserved) {
  SmallPool small(7, 3);
  EXPECT_EQ(small.pool.bytes(), 7 * small.pool.plan().row_bytes() + 3 * small.pool.plan().slot_bytes());
}

// Row 60,000 starts beyond 2^32: an address computed in 32 bits would be another row.
TEST(CachePool, AddressesBeyond32Bits) {
  SmallPool small(60001);
  ASSERT_GT(60000 * small.pool.plan().row_bytes(), int64_t{1} << 33);
  EXPECT_EQ(small.pool.row_data(60000) - small.pool.row_data(0), 60000 * small.pool.plan().row_bytes());
  *small.pool.row_data(60000) = 7;
  *small.pool.row_data(0) = 1;
  EXPECT_EQ(*small.pool.row_data(60000), 7);
}

TEST(CachePool, EveryFreeByteHoldsNaN) {
  SmallPool small(3);
  CachePool& pool = small.pool;
  const int64_t bytes = pool.plan().row_bytes();
  for (int round = 0; round < 3; ++round) {
    Row row = pool.take_row();
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(row.data()[i], 0xFF) << i;
    std::memset(row.data(), 1, bytes);
  }
  Slot slot = pool.take_slot();
  for (int64_t i = 0; i < pool.plan().slot_bytes(); ++i) ASSERT_EQ(slot.data()[i], 0xFF) << i;
}

TEST(CachePool, IntegrityFindsLeaksAndStrayWrites) {
  SmallPool small(3);
  CachePool& pool = small.pool;
  pool.check_integrity(nobody(pool));
  {
    const Row row = pool.take_row(), again = row;
    pool.check_integrity({2, 0, 0});
    EXPECT_THROW(pool.check_integrity({1, 0, 0}), Error);
    EXPECT_THROW(pool.check_integrity(nobody(pool)), Error);
    EXPECT_THROW(pool.check_integrity({2, 1, 0}), Error);
  }
  pool.check_integrity(nobody(pool));
  pool.row_data(0)[pool.plan().row_bytes() - 1] = 0;  // through a pointer that outlived its row
  EXPECT_THROW(pool.check_integrity(nobody(pool)), Error);
}

TEST(CachePool, RandomHistoriesKeepCount) {
  std::mt19937 random(1);
  SmallPool small(20);
  CachePool& pool = small.pool;
  std::vector<Row> held;
  for (int step = 0; step < 3000; ++step) {
    const int what = static_cast<int>(random() % 3);
    if (what == 0) {
      if (Row row = pool.take_row()) held.push_back(std::move(row));
    } else if (!held.empty()) {
      const size_t at = random() % held.size();
      if (what == 1) {
        held.push_back(held[at]);
      } else {
        held.erase(held.begin() + static_cast<int64_t>(at));
      }
    }
    std::vector<int64_t> expected(20, 0);
    for (const Row& row : held) ++expected[row.id()];
    if (step % 100 == 0) pool.check_integrity(expected);
    ASSERT_EQ(pool.free_rows(), std::count(expected.begin(), expected.end(), 0));
  }
}

}  // namespace
}  // namespace perigee
