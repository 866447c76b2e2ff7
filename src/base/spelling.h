// What a misspelt word may have meant: the hint at the end of a message about an unknown name.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

// Levenshtein distance: the fewest bytes inserted, removed or replaced that make `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

// The first of the `known` words at the least distance from `word`; "" when none is nearer than `within`.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known,
                         size_t within = std::numeric_limits<size_t>::max());

}  // namespace perigee
