// The committed inputs of a fuzz target.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace perigee {

// The files of tests/fuzz/corpus/`name`, sorted by content: directory order is not fixed.
inline std::vector<std::string> read_corpus(const std::string& name) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/" + name)) {
    std::ifstream in(entry.path(), std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace perigee
