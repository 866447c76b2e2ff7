// The selection rule's order of index scores, as integers.
#pragma once

#include "formats/bf16.h"

namespace perigee {

// A bf16 score as 16 bits whose descending order is the rule's: larger scores first, −0 = +0, NaN last.
PERIGEE_HD inline uint32_t order_key(bf16 score) {
  if ((score & 0x7FFFu) > 0x7F80u) return 0;
  return (score & 0x8000u) ? 0x8000u - (score & 0x7FFFu) : 0x8000u + score;
}

}  // namespace perigee
