// Reads the stage vectors of tests/data/stages, which the numpy oracle wrote
// (tests/oracle/make_stage_vectors.py).
#pragma once

#include <cstring>
#include <map>
#include <string>

#include "model/safetensors.h"
#include "model/weights_memory.h"
#include "ops/reference.h"

namespace perigee::test {

class Vectors {
 public:
  explicit Vectors(const std::string& name) : file_("tests/data/stages/" + name + ".safetensors") {
    for (const TensorInfo& t : read_safetensors_header(file_.bytes(), file_.path())) tensors_[t.name] = t;
  }
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const TensorInfo& t = tensors_.at(name);
    check(sizeof(T) == dtype_size(t.dtype), "Vectors::read: element size differs from the dtype");
    std::vector<T> out((t.end - t.begin) / sizeof(T));
    std::memcpy(out.data(), file_.bytes().data() + t.begin, t.end - t.begin);
    return out;
  }
  std::vector<bf16> bf16s(const std::string& name) const { return read<bf16>(name); }
  Doubles doubles(const std::string& name) const { return read<double>(name); }

 private:
  MappedFile file_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace perigee::test
