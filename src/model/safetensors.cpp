#include "model/safetensors.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <tuple>

#include "base/error.h"
#include "model/config_json.h"

namespace perigee {

namespace {

namespace json = boost::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr DType kKnown[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kU8,     DType::kI8,
                            DType::kI32, DType::kI64,  DType::kF64, DType::kF8E4M3, DType::kBool};

class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  std::vector<TensorInfo> read() {
    const std::string_view text = header_text();
    const json::value value = parse_strict_json(text, path_ + ": header", ErrorCode::kBadFile);
    if (!value.is_object()) fail(ErrorCode::kBadFile, "{}: the header is not a JSON object", path_);
    std::vector<TensorInfo> out;
    for (const auto& field : value.get_object()) {
      const std::string name(field.key());
      if (name == "__metadata__")
        check_metadata(field.value());
      else
        out.push_back(read_tensor(name, field.value()));
    }
    check_layout(out);
    return out;
  }

 private:
  std::string_view header_text() {
    if (bytes_.size() < 8)
      fail(ErrorCode::kBadFile,
           "{}: {} bytes are too few for a safetensors file (at least 8): fetch it again", path_,
           bytes_.size());
    constexpr std::string_view kPointer = "version https://git-lfs";
    if (std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size()).starts_with(kPointer))
      fail(ErrorCode::kBadFile, "{}: a Git LFS pointer, not the weights; fetch them with `git lfs pull`",
           path_);
    uint64_t length = 0;
    for (int i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(bytes_[i]) << (8 * i);
    if (length > kMaxHeader || length > bytes_.size() - 8)
      fail(ErrorCode::kBadFile,
           "{}: the header claims {} bytes, but {} follow (limit {}); the file is cut or not safetensors: "
           "fetch it again",
           path_, length, bytes_.size() - 8, kMaxHeader);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + 8, length);
    if (text.empty() || text[0] != '{')
      fail(ErrorCode::kBadFile, "{}: the header does not begin with '{{'", path_);
    data_ = 8 + length;
    return text;
  }

  void check_metadata(const json::value& value) const {
    if (!value.is_object()) fail(ErrorCode::kBadFile, "{}: __metadata__ is not an object", path_);
    for (const auto& field : value.get_object())
      if (!field.value().is_string())
        fail(ErrorCode::kBadFile, "{}: __metadata__.{} is not a string", path_,
             std::string_view(field.key()));
  }

  [[noreturn]] void bad(const std::string& name, std::string_view problem) const {
    fail(ErrorCode::kBadFile, "{}: tensor {}: {}", path_, name, problem);
  }

  uint64_t natural(const std::string& name, std::string_view what, const json::value& v) const {
    if (!v.is_int64() || v.get_int64() < 0)
      bad(name, fmt::format("{} holds {}; a non-negative integer is needed", what, json::serialize(v)));
    return static_cast<uint64_t>(v.get_int64());
  }

  TensorInfo read_tensor(const std::string& name, const json::value& value) const {
    if (!value.is_object()) bad(name, "its header entry is not an object");
    const json::object& o = value.get_object();
    const json::value *dtype = o.if_contains("dtype"), *shape = o.if_contains("shape"),
                      *offsets = o.if_contains("data_offsets");
    if (!dtype || !shape || !offsets || o.size() != 3)
      bad(name, "its header entry must hold exactly dtype, shape and data_offsets");
    TensorInfo t;
    t.name = name;
    if (!dtype->is_string()) bad(name, "dtype is not a string");
    const auto known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](DType d) {
      return dtype_name(d) == std::string_view(dtype->get_string());
    });
    if (known == std::end(kKnown))
      bad(name, fmt::format("dtype {} is not one that perigee reads", json::serialize(*dtype)));
    t.dtype = *known;
    if (!shape->is_array()) bad(name, "shape is not a list");
    uint64_t size = dtype_size(t.dtype);
    for (const json::value& v : shape->get_array()) {
      const uint64_t d = natural(name, "shape", v);
      t.shape.push_back(static_cast<int64_t>(d));
      if (__builtin_mul_overflow(size, d, &size))
        bad(name, fmt::format("shape {} overflows", to_string(t.shape)));
    }
    if (!offsets->is_array() || offsets->get_array().size() != 2)
      bad(name, "data_offsets is not a list of two");
    t.begin = natural(name, "data_offsets", offsets->get_array()[0]);
    t.end = natural(name, "data_offsets", offsets->get_array()[1]);
    const uint64_t available = bytes_.size() - data_;
    if (t.begin > t.end || t.end > available)
      bad(name, fmt::format("data_offsets [{},{}] are not inside the {} data bytes of the file; it is cut: "
                            "fetch it again",
                            t.begin, t.end, available));
    if (t.end - t.begin != size)
      bad(name, fmt::format("{} {} needs {} bytes, but data_offsets [{},{}] hold {}", dtype_name(t.dtype),
                            to_string(t.shape), size, t.begin, t.end, t.end - t.begin));
    t.begin += data_;
    t.end += data_;
    return t;
  }

  void check_layout(std::vector<TensorInfo>& tensors) const {
    std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    uint64_t at = data_;
    const TensorInfo* previous = nullptr;
    for (const TensorInfo& t : tensors) {
      if (t.begin < at)
        bad(t.name, fmt::format("its bytes overlap those of {} by {}", previous->name, at - t.begin));
      if (t.begin > at) bad(t.name, fmt::format("{} bytes before it belong to no tensor", t.begin - at));
      at = t.end;
      previous = &t;
    }
    if (at != bytes_.size())
      fail(ErrorCode::kBadFile, "{}: {} bytes trail the last tensor; the file should end at byte {}", path_,
           bytes_.size() - at, at);
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  uint64_t data_ = 0;  // where the data begins
};

}  // namespace

std::vector<TensorInfo> read_safetensors_header(std::span<const std::byte> bytes, const std::string& path) {
  return HeaderReader(bytes, path).read();
}

}  // namespace perigee
