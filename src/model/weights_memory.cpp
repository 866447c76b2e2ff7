#include "model/weights_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace perigee {

namespace {

constexpr size_t kBlock = 8 << 20;  // one read

// One flag a page: bit 0 says that the page is in memory. Empty when the system does not tell.
std::vector<unsigned char> resident_pages(const std::byte* data, size_t size) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> flags((size + page - 1) / page);
  if (!flags.empty() && mincore(const_cast<std::byte*>(data), size, flags.data()) != 0) flags.clear();
  return flags;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info{};
  if (fd_ < 0 || fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int error = fd_ < 0 || !S_ISDIR(info.st_mode) ? errno : EISDIR;
    if (fd_ >= 0) close(fd_);
    fail(ErrorCode::kBadFile, "{}: cannot be opened: {}", path, std::strerror(error));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* at = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    close(fd_);
    fail(ErrorCode::kBadFile, "{}: {} bytes cannot be mapped: {}", path, size_, std::strerror(error));
  }
  data_ = static_cast<const std::byte*>(at);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) close(fd_);
}

size_t MappedFile::cold_bytes() const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t cold = 0;
  for (unsigned char flags : resident_pages(data_, size_)) cold += (flags & 1) ? 0 : page;
  return std::min(cold, size_);
}

void MappedFile::warm(int threads, Progress& progress) const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::vector<unsigned char> resident = resident_pages(data_, size_);
  if (resident.empty()) return;
  std::mutex mutex;
  ThreadPool pool(threads);
  pool.run(static_cast<int64_t>((size_ + kBlock - 1) / kBlock), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kBlock, end = std::min(size_, begin + kBlock);
    size_t cold = 0;
    for (size_t p = begin / page; p < (end + page - 1) / page; ++p) cold += (resident[p] & 1) ? 0 : page;
    if (cold == 0) return;
    thread_local std::vector<char> scratch(kBlock);
    for (size_t at = begin; at < end;) {
      const ssize_t got = pread(fd_, scratch.data(), end - at, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        fail(ErrorCode::kBadFile, "{}: reading at byte {} failed: {}", path_, at,
             got == 0 ? "the file ends early" : std::strerror(errno));
      at += static_cast<size_t>(got);
    }
    std::lock_guard lock(mutex);
    progress.advance(static_cast<int64_t>(std::min(cold, end - begin)));
  });
}

void MappedFile::release() const {
  if (data_) madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

Region::Region(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) fail(ErrorCode::kUnsupported, "out of memory: {} bytes of weights asked for", bytes);
  madvise(at, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(at);
}

Region::~Region() {
  if (data_) munmap(data_, size_);
}

}  // namespace perigee
