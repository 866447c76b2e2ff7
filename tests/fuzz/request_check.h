// The property that holds for any input of a client: it is refused with an Error that is the client's (bad
// request, unsupported, busy), or taken; and an answer of any tokens to what is taken has valid JSON and
// UTF-8. The first byte says what the rest is: a request's body to a route, a model's tokens, a schema, an
// expression, a grammar, the bytes of a connection.
#pragma once

#include <cstddef>

namespace perigee {

constexpr int kInputKinds = 11;

// True when the input was taken. Aborts when the property is broken.
bool check_request(const void* data, size_t size);

}  // namespace perigee
