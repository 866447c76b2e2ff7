// Bytes of a client through a whole connection, without a network: pieces come and go in sizes that follow
// from the input, and the handler answers whole, in pieces, late, or not at all.
#pragma once

#include <string_view>

namespace perigee {

// Aborts when what the connection sends is not replies, or more of them than there were requests.
void check_http(std::string_view input);

}  // namespace perigee
