// The arena reuses memory in the order of use, aligned, and test builds never hand out what was there before.
#include "base/arena.h"

#include <gtest/gtest.h>

#include <cmath>

namespace perigee {

TEST(Arena, PiecesAreAlignedAndApart) {
  Arena arena;
  float* a = arena.take<float>(3);
  double* b = arena.take<double>(5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0u);
  for (int i = 0; i < 3; ++i) a[i] = 1;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(std::isnan(b[i]));
}

TEST(Arena, AScopeGivesBackItsPieces) {
  Arena arena;
  float* kept = arena.take<float>(8);
  kept[0] = 42;
  float* first;
  {
    const Arena::Scope scope(arena);
    first = arena.take<float>(100);
    first[0] = 1;
  }
  const Arena::Scope scope(arena);
  float* again = arena.take<float>(50);
  EXPECT_EQ(again, first);            // the memory of the last step
  EXPECT_TRUE(std::isnan(again[0]));  // but not its contents
  EXPECT_EQ(kept[0], 42);
  EXPECT_NE(arena.take<float>(1000000), nullptr);
}

}  // namespace perigee
