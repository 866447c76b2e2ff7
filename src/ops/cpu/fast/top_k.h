// The top k of keys of 16 bits: a radix select in two passes over the halves of a key, O(n). Where few of
// many are kept, it runs over the keys above a bound alone, which a sample sets and one vector pass applies.
#pragma once

#include <cstdint>

namespace perigee::cpu {

// The positions of the `kept` largest of key[0, n), the earlier of equal ones first, in ascending order.
// 0 < kept ≤ n.
void select_top(const uint16_t* key, int64_t n, int64_t kept, int32_t* selected);

}  // namespace perigee::cpu
