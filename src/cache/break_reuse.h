// Test builds can leave the KDA states out of every prefix hit, so that the property tests prove they would
// notice a hit that restores the attention rows alone. In other builds it is constant false.
#pragma once

namespace perigee {

#ifdef PERIGEE_TEST_HOOKS
inline bool g_reuse_broken = false;
inline bool reuse_broken() { return g_reuse_broken; }
#else
constexpr bool reuse_broken() { return false; }
#endif

}  // namespace perigee
