#include "model/checkpoint.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/progress.h"
#include "model/config_json.h"
#include "model/safetensors.h"
#include "model/weights_memory.h"

namespace perigee {

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr const char* kIndexName = "model.safetensors.index.json";

// tensor → file, from the index.
std::map<std::string, std::string> read_index(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const json::value value = parse_strict_json(text, path, ErrorCode::kBadFile);
  const json::object* root = value.if_object();
  const json::value* map_value = root ? root->if_contains("weight_map") : nullptr;
  const json::object* map = map_value ? map_value->if_object() : nullptr;
  if (!map)
    fail(ErrorCode::kBadFile, "{}: no object \"weight_map\"; it must map tensor names to files", path);
  std::map<std::string, std::string> out;
  for (const auto& field : *map) {
    const std::string name(field.key());
    const json::string* target = field.value().if_string();
    if (!target || target->empty() || target->find('/') != json::string::npos || *target == "." ||
        *target == "..")
      fail(ErrorCode::kBadFile, "{}: weight_map.{} is not the plain name of a file in the same folder", path,
           name);
    out.emplace(name, std::string(*target));
  }
  if (out.empty()) fail(ErrorCode::kBadFile, "{}: weight_map is empty", path);
  return out;
}

void warm_files(const std::vector<std::shared_ptr<MappedFile>>& files, int threads, bool show_progress) {
  size_t cold = 0, total = 0;
  for (const auto& f : files) cold += f->cold_bytes(), total += f->bytes().size();
  struct sysinfo memory{};
  sysinfo(&memory);
  // Reading ahead more than memory holds would only push out what was read first.
  if (cold == 0 || total > uint64_t{memory.totalram} * memory.mem_unit / 10 * 8) return;
  Progress shown("reading weights", static_cast<int64_t>(show_progress ? cold : 0), 1e9, "GB");
  for (const auto& f : files) f->warm(threads, shown);
}

void add_file(TensorSet& set, const std::shared_ptr<MappedFile>& file) {
  const int index = static_cast<int>(set.files.size());
  set.files.push_back(file->path());
  set.owners.push_back(file);
  set.mapped.push_back(file);
  for (TensorInfo& info : read_safetensors_header(file->bytes(), file->path())) {
    const Tensor tensor{info.dtype, std::move(info.shape), file->bytes().data() + info.begin};
    const std::string name = canonical_tensor_name(info.name);
    const auto [at, fresh] = set.tensors.emplace(name, StoredTensor{tensor, index});
    if (!fresh)
      fail(ErrorCode::kBadFile, "tensor {} occurs twice: in {} and in {} (there spelled {})", name,
           set.files[at->second.file], file->path(), info.name);
  }
}

std::string listing(const std::string& head, const std::vector<std::string>& items) {
  constexpr size_t kShown = 5;
  std::string out = fmt::format("; {} {}: ", items.size(), head);
  for (size_t i = 0; i < std::min(kShown, items.size()); ++i) out += (i ? ", " : "") + items[i];
  if (items.size() > kShown) out += fmt::format(", … and {} more", items.size() - kShown);
  return out;
}

std::string describe(DType dtype, const Shape& shape) {
  return fmt::format("{} {}", dtype_name(dtype), to_string(shape));
}

bool fits(const TensorSpec& spec, const Tensor& t) {
  switch (spec.form) {
    case TensorForm::kMatrix:
    case TensorForm::kPacked:
    case TensorForm::kScale:
      return t.dtype == spec.dtype && t.shape == spec.shape;
    case TensorForm::kVision:
      return (t.dtype == DType::kBF16 || t.dtype == DType::kF32) && t.shape == spec.shape;
    case TensorForm::kSmall:
      return (t.dtype == DType::kBF16 || t.dtype == DType::kF32) && squeeze(t.shape) == squeeze(spec.shape);
    case TensorForm::kALog: {
      const Shape s = squeeze(t.shape);
      const int64_t found = s.empty() ? 1 : s[0], heads = spec.parameters;
      return (t.dtype == DType::kBF16 || t.dtype == DType::kF32) && s.size() <= 1 &&
             (found == heads || found == (heads + 127) / 128 * 128);
    }
  }
  return false;
}

std::string expected(const TensorSpec& spec) {
  switch (spec.form) {
    case TensorForm::kMatrix:
    case TensorForm::kPacked:
    case TensorForm::kScale:
      return describe(spec.dtype, spec.shape);
    case TensorForm::kVision:
      return "BF16 or F32 " + to_string(spec.shape);
    case TensorForm::kSmall:
      return fmt::format("BF16 or F32 {} up to axes of length 1", to_string(squeeze(spec.shape)));
    case TensorForm::kALog:
      return fmt::format("BF16 or F32 [{}], or padded to [{}]", spec.parameters,
                         (spec.parameters + 127) / 128 * 128);
  }
  return "?";
}

}  // namespace

Shape squeeze(const Shape& shape) {
  Shape out;
  for (int64_t d : shape)
    if (d != 1) out.push_back(d);
  return out;
}

TensorSet open_checkpoint(const std::string& folder, int threads, bool show_progress) {
  TensorSet set;
  set.origin = folder;
  const fs::path root = folder;
  const fs::path index_path = root / kIndexName;
  if (!fs::is_directory(root))
    fail(ErrorCode::kBadFile, "{}: no such folder; give a folder in Hugging Face layout", folder);
  std::map<std::string, std::string> index;
  std::vector<std::string> names;
  if (fs::exists(index_path)) {
    index = read_index(index_path.string());
    for (const auto& [tensor, file] : index) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  } else {
    names = {"model.safetensors"};
    if (!fs::exists(root / names[0]))
      fail(ErrorCode::kBadFile,
           "{}: neither {} nor model.safetensors is there; download the weights, or use --load-format dummy",
           folder, kIndexName);
  }
  std::vector<std::shared_ptr<MappedFile>> files;
  for (const std::string& name : names) {
    if (!fs::exists(root / name)) {
      const auto user =
          std::find_if(index.begin(), index.end(), [&](const auto& entry) { return entry.second == name; });
      fail(ErrorCode::kBadFile, "{}: the file {} is missing; {} places tensor {} there", folder, name,
           kIndexName, user->first);
    }
    files.push_back(std::make_shared<MappedFile>((root / name).string()));
  }
  for (const auto& file : files) add_file(set, file);

  // The index and the files must tell the same story.
  for (const auto& [tensor, file] : index) {
    const auto at = set.tensors.find(canonical_tensor_name(tensor));
    const std::string path = (root / file).string();
    if (at == set.tensors.end() || set.files[at->second.file] != path)
      fail(ErrorCode::kBadFile, "{}: tensor {} is expected here by {}, but {}", path, tensor, kIndexName,
           at == set.tensors.end() ? "no file holds it" : "it is in " + set.files[at->second.file]);
  }
  if (!index.empty() && index.size() != set.tensors.size()) {
    std::unordered_map<std::string, bool> listed;
    for (const auto& [tensor, file] : index) listed[canonical_tensor_name(tensor)] = true;
    for (const auto& [tensor, stored] : set.tensors)
      if (!listed.contains(tensor))
        fail(ErrorCode::kBadFile, "{}: tensor {} is not listed in {}", set.files[stored.file], tensor,
             kIndexName);
  }
  warm_files(files, threads, show_progress);
  return set;
}

void check_checkpoint(const TensorSet& set, const ModelConfig& config) {
  std::vector<std::string> missing, wrong, unexpected;
  std::unordered_map<std::string_view, bool> known;
  const std::vector<TensorSpec> roster = tensor_roster(config);
  for (const TensorSpec& spec : roster) {
    known[spec.name] = true;
    const auto at = set.tensors.find(spec.name);
    if (at == set.tensors.end()) {
      if (!spec.optional) missing.push_back(fmt::format("{}: expected {}", spec.name, expected(spec)));
    } else if (!fits(spec, at->second.tensor)) {
      wrong.push_back(fmt::format("{} in {}: expected {}, found {}", spec.name, set.files[at->second.file],
                                  expected(spec),
                                  describe(at->second.tensor.dtype, at->second.tensor.shape)));
    }
  }
  for (const auto& [name, stored] : set.tensors)
    if (!known.contains(name))
      unexpected.push_back(fmt::format("{} in {}: found {}", name, set.files[stored.file],
                                       describe(stored.tensor.dtype, stored.tensor.shape)));
  if (missing.empty() && wrong.empty() && unexpected.empty()) return;
  std::sort(unexpected.begin(), unexpected.end());
  std::string message =
      fmt::format("{}: the tensors do not match the config ({}); take both from one checkpoint", set.origin,
                  config.architecture);
  if (!missing.empty()) message += listing("missing", missing);
  if (!wrong.empty()) message += listing("of a wrong dtype or shape", wrong);
  if (!unexpected.empty()) message += listing("unexpected", unexpected);
  throw Error(ErrorCode::kBadFile, message);
}

}  // namespace perigee
