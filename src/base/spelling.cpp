#include "base/spelling.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace perigee {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // of the table of distances between prefixes
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known, size_t within) {
  std::string nearest;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(candidate, word);
    if (distance >= within) continue;
    within = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace perigee
