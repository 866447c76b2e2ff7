// make_checkpoint CONFIG OUTDIR [seed [max_shard_mb]]: a checkpoint with seeded dummy weights for a
// config.json, a folder or a built-in name.
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "make_checkpoint.h"

int main(int argc, char** argv) {
  using namespace perigee;
  if (argc < 3 || argc > 5) {
    std::cerr << "usage: make_checkpoint CONFIG OUTDIR [seed [max_shard_mb]]\n";
    return 2;
  }
  try {
    std::string path = argv[1];
    const ModelConfig config = load_config(path);
    if (std::filesystem::is_directory(path)) path += "/config.json";
    const auto builtin = builtin_config_json(path);
    const std::string text = std::filesystem::exists(path) ? read_file(path) : std::string(*builtin);
    const uint64_t seed = argc > 3 ? std::stoull(argv[3]) : 0;
    const int64_t shard = argc > 4 ? std::stoll(argv[4]) << 20 : 0;
    const auto tensors = dummy_tensors(config, seed);
    write_checkpoint(argv[2], text, tensors, {.max_shard_bytes = shard});
    std::cout << argv[2] << ": " << tensors.size() << " tensors\n";
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "make_checkpoint: " << e.what() << "\n";
    return 1;
  }
}
