// Small pieces of HTTP's grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace perigee::serve {

// "Not Found" of 404; "" of a status we never send.
std::string_view reason_phrase(int status);

// nullopt for a broken escape or a NUL.
std::optional<std::string> percent_decoded(std::string_view text);

// Equal, in a time that depends on the lengths alone.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace perigee::serve
