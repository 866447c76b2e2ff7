// The tiers: what comes back is what went out, through memory, the file and the move between them; damage is
// noticed; nothing leaks.
#include "cache/row_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "small_pool.h"

namespace perigee {
namespace {

using test::SmallPool;

std::string fresh_file() {
  return (std::filesystem::temp_directory_path() / ("perigee-rows-" + std::to_string(getpid()))).string();
}

class RowStoreTest : public testing::Test {
 protected:
  RowStoreOptions options(int64_t memory_rows, int64_t file_rows) {
    return {
        .memory_bytes = memory_rows * row_bytes_, .file = fresh_file(), .file_bytes = file_rows * row_bytes_};
  }

  // A row that holds `mark` everywhere.
  Row marked(int mark) {
    Row row = pool_.take_row();
    std::memset(row.data(), mark, row_bytes_);
    return row;
  }
  static bool holds(const Row& row, int mark, int64_t bytes) {
    return std::all_of(row.data(), row.data() + bytes, [mark](uint8_t b) { return b == mark; });
  }

  // What a stored row comes back as: its mark, or −1 when it is lost.
  int fetch(RowStore& store, RowStore::Key key) {
    const Row row = pool_.take_row();
    store.get(key, row);
    store.wait();
    for (const RowStore::Arrival& a : store.poll()) {
      if (a.key != key) continue;
      if (!a.ok) return -1;
      const int mark = row.data()[0];
      EXPECT_TRUE(holds(row, mark, row_bytes_));
      return mark;
    }
    ADD_FAILURE() << "nothing came";
    return -1;
  }

  SmallPool small_{40};
  CachePool& pool_ = small_.pool;
  const int64_t row_bytes_ = pool_.plan().row_bytes();
};

TEST_F(RowStoreTest, RowsComeBackFromMemoryAndFile) {
  RowStore store(pool_, options(3, 4));
  EXPECT_EQ(store.rows(), 7);
  std::vector<RowStore::Key> keys;
  for (int i = 0; i < 7; ++i) {
    keys.push_back(store.put(marked(10 + i)));
    EXPECT_GT(keys.back(), 0);
    store.wait();
    store.poll();
    EXPECT_TRUE(store.stored(keys.back()));
  }
  EXPECT_EQ(store.put(marked(99)), 0);  // full
  EXPECT_EQ(pool_.free_rows(), 40);     // the copies hold no row of the pool
  for (int i = 0; i < 7; ++i) EXPECT_EQ(fetch(store, keys[i]), 10 + i);
  store.drop(keys[2]);
  EXPECT_FALSE(store.stored(keys[2]));
  EXPECT_EQ(store.free_rows(), 1);
  const RowStore::Key next = store.put(marked(50));
  EXPECT_EQ(fetch(store, next), 50);
  for (int i : {0, 1, 3, 4, 5, 6}) EXPECT_EQ(fetch(store, keys[i]), 10 + i);
}

TEST_F(RowStoreTest, ARowIsHeldUntilItsCopyIsDone) {
  RowStore store(pool_, options(2, 0));
  const RowStore::Key key = store.put(marked(7));
  EXPECT_EQ(pool_.free_rows(), 39);
  store.wait();
  EXPECT_FALSE(store.stored(key));  // not before poll() has said so
  EXPECT_EQ(pool_.free_rows(), 39);
  store.poll();
  EXPECT_TRUE(store.stored(key));
  EXPECT_EQ(pool_.free_rows(), 40);
}

TEST_F(RowStoreTest, ADamagedFileIsNoticed) {
  RowStore store(pool_, options(0, 3));
  const RowStore::Key a = store.put(marked(1)), b = store.put(marked(2));
  store.wait();
  store.poll();
  // The store's file has no name any more; it is found among the open ones.
  int file = -1;
  for (int fd = 3; fd < 256; ++fd) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
    if (!error && target.string().starts_with(fresh_file())) file = fd;
  }
  ASSERT_GE(file, 0);
  EXPECT_FALSE(std::filesystem::exists(fresh_file()));
  const uint8_t wrong = 3;
  ASSERT_EQ(pwrite(file, &wrong, 1, 0), 1);  // the first place: a's
  EXPECT_EQ(fetch(store, a), -1);
  EXPECT_FALSE(store.stored(a));
  EXPECT_EQ(fetch(store, b), 2);
  EXPECT_EQ(store.free_rows(), 2);
}

TEST_F(RowStoreTest, ATierTooSmallForARowIsRefusedWithNumbers) {
  const int64_t bytes = pool_.plan().row_bytes() - 1;
  for (const RowStoreOptions& options : {RowStoreOptions{.memory_bytes = bytes},
                                         RowStoreOptions{.file = "/tmp/never-made", .file_bytes = bytes}}) {
    try {
      RowStore store(pool_, options);
      ADD_FAILURE() << "taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(e.what()).find(std::to_string(bytes)), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(std::to_string(bytes + 1)), std::string::npos) << e.what();
    }
  }
}

TEST_F(RowStoreTest, AFileThatCannotBeMadeIsNamed) {
  try {
    RowStore store(pool_, {.file = "/no/such/folder/rows", .file_bytes = 10 * row_bytes_});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadFile);
    EXPECT_NE(std::string(e.what()).find("/no/such/folder/rows"), std::string::npos);
  }
}

TEST_F(RowStoreTest, RandomTraffic) {
  std::mt19937 random(1);
  RowStore store(pool_, options(4, 6));
  std::map<RowStore::Key, int> want;
  std::map<RowStore::Key, int> coming;  // asked for, with what should come
  const auto note = [&] {
    for (const RowStore::Arrival& a : store.poll()) {
      ASSERT_TRUE(a.ok);
      ASSERT_TRUE(holds(a.row, coming.at(a.key), row_bytes_));
      coming.erase(a.key);
    }
  };
  for (int step = 0; step < 2000; ++step) {
    const int what = static_cast<int>(random() % 4);
    const auto any = want.empty() ? want.end() : std::next(want.begin(), random() % want.size());
    if (what == 0 && pool_.free_rows() > 5) {
      const int mark = static_cast<int>(random() % 250);
      if (const RowStore::Key key = store.put(marked(mark))) want[key] = mark;
    } else if (what == 1 && any != want.end() && !coming.contains(any->first) && pool_.free_rows() > 5) {
      coming[any->first] = any->second;
      store.get(any->first, pool_.take_row());
    } else if (what == 2 && any != want.end() && store.free_rows() < 3 && !coming.contains(any->first)) {
      store.drop(any->first);
      want.erase(any);
    } else {
      note();
    }
  }
  store.wait();
  note();
  EXPECT_TRUE(coming.empty());
  EXPECT_EQ(pool_.free_rows(), 40);
  EXPECT_EQ(store.free_rows(), store.rows() - static_cast<int64_t>(want.size()));
  for (const auto& [key, mark] : want) EXPECT_EQ(fetch(store, key), mark);
}

}  // namespace
}  // namespace perigee
