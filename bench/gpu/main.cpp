// gpu_bench COMMIT DATE [--only=NAME,…] [FILE]: prints a row for every figure and writes the same as JSON.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "bench/gpu/harness.h"

namespace {

using perigee::cuda::bench::Bench;
using Run = void (*)(Bench&);

const std::map<std::string, Run> kBenches = {
    {"attend", perigee::cuda::bench::attend},   {"attn_res_mix", perigee::cuda::bench::attn_res_mix},
    {"experts", perigee::cuda::bench::experts}, {"index", perigee::cuda::bench::index},
    {"kda", perigee::cuda::bench::kda},         {"products", perigee::cuda::bench::products}};

int run(const std::string& commit, const std::string& date, const std::vector<std::string>& only,
        const char* file) {
  Bench bench;
  for (const auto& [name, function] : kBenches) {
    if (only.empty() || std::find(only.begin(), only.end(), name) != only.end()) function(bench);
  }
  if (file == nullptr) return 0;
  std::ofstream out(file);
  out << bench.json(commit, date);
  return out.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> only;
  const char* file = nullptr;
  bool usage = argc < 3;
  for (int i = 3; i < argc; ++i) {
    const std::string arg = argv[i];
    if (!arg.starts_with("--only=")) {
      usage |= std::exchange(file, argv[i]) != nullptr;
      continue;
    }
    std::istringstream names(arg.substr(7));
    for (std::string name; std::getline(names, name, ',');) {
      usage |= !kBenches.contains(name);
      only.push_back(name);
    }
  }
  if (usage) {
    std::cerr << "usage: gpu_bench COMMIT DATE [--only=NAME,...] [FILE]; names:";
    for (const auto& [name, function] : kBenches) std::cerr << " " << name;
    std::cerr << "\n";
    return 2;
  }
  try {
    return run(argv[1], argv[2], only, file);
  } catch (const std::exception& e) {
    std::cerr << "gpu_bench: " << e.what() << "\n";
    return 1;
  }
}
