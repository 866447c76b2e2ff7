#include "make_checkpoint.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "model/dummy.h"
#include "model/roster.h"

namespace perigee {

namespace {

namespace json = boost::json;

std::string number_le(uint64_t x) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(x >> (8 * i));
  return out;
}

}  // namespace

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) fail(ErrorCode::kBadFile, "{}: writing {} bytes failed", path, bytes.size());
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::kBadFile, "{}: cannot be read", path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string safetensors_bytes(const std::vector<FileTensor>& tensors, int header_padding) {
  json::object header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t at = 0;
  for (const FileTensor& t : tensors) {
    json::array shape(t.shape.begin(), t.shape.end());
    header[t.name] = {
        {"dtype", dtype_name(t.dtype)}, {"shape", shape}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  const std::string text = json::serialize(header) + std::string(header_padding, ' ');
  std::string out = number_le(text.size()) + text;
  out.reserve(out.size() + at);
  for (const FileTensor& t : tensors) out += t.bytes;
  return out;
}

std::vector<FileTensor> dummy_tensors(const ModelConfig& config, uint64_t seed) {
  std::vector<FileTensor> out;
  for_each_tensor(config, [&](const TensorSpec& spec) {
    if (spec.optional) return;
    FileTensor t{spec.name, spec.dtype, spec.shape, {}};
    const int64_t n = element_count(spec.shape);
    t.bytes.resize(static_cast<size_t>(n) * dtype_size(spec.dtype));
    fill_dummy(spec, config, seed, 0, n, reinterpret_cast<std::byte*>(t.bytes.data()));
    out.push_back(std::move(t));
  });
  return out;
}

void write_checkpoint(const std::string& folder, const std::string& config_json,
                      const std::vector<FileTensor>& tensors, const CheckpointLayout& layout) {
  const std::filesystem::path root = folder;
  std::filesystem::create_directories(root);
  write_file((root / "config.json").string(), config_json);
  if (layout.max_shard_bytes == 0) {
    write_file((root / "model.safetensors").string(), safetensors_bytes(tensors, layout.header_padding));
    return;
  }
  std::vector<std::vector<FileTensor>> shards;
  int64_t used = 0, total = 0;
  for (const FileTensor& t : tensors) {
    const int64_t size = static_cast<int64_t>(t.bytes.size());
    if (shards.empty() || used + size > layout.max_shard_bytes) shards.emplace_back(), used = 0;
    shards.back().push_back(t);
    used += size;
    total += size;
  }
  json::object map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:06}.safetensors", i + 1, shards.size());
    for (const FileTensor& t : shards[i]) map[t.name] = name;
    write_file((root / name).string(), safetensors_bytes(shards[i], layout.header_padding));
  }
  const json::object index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file((root / "model.safetensors.index.json").string(), json::serialize(index));
}

}  // namespace perigee
