// Element types of tensors, as safetensors names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace perigee {

enum class DType : uint8_t { kF32, kBF16, kF16, kU8, kI8, kI32, kI64, kF64, kF8E4M3, kBool };

constexpr size_t dtype_size(DType t) {
  switch (t) {
    case DType::kI64:
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kF64:
      return "F64";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

}  // namespace perigee
