// Memory behind Weights: read-only file mappings and big anonymous regions whose pages appear when first
// written.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/progress.h"

namespace perigee {

// A whole file, mapped read-only. A file that shrinks while mapped ends the process at the next access, as
// with any mapping.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // How many bytes lie outside the page cache.
  size_t cold_bytes() const;
  // Brings the file into the page cache with `threads` parallel readers of large blocks: several times as
  // fast on a cold disk or network volume as one fault a page. The mapping then reads the same bytes without
  // waiting.
  void warm(int threads, Progress& progress) const;
  // Takes the mapping's pages out of this process; the next read brings them back from the page cache.
  void release() const;

 private:
  std::string path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Zeroed anonymous memory; nothing is touched until it is written.
class Region {
 public:
  explicit Region(size_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace perigee
