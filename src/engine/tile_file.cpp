#include "engine/tile_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace perigee {

namespace {

constexpr size_t kHeader = 4096, kChunk = 8 << 20;
constexpr char kMagic[] = "perigee tiles\n";

struct File {
  int fd;
  explicit File(int fd) : fd(fd) {}
  ~File() {
    if (fd >= 0) close(fd);
  }
  File(const File&) = delete;
};

// Four interleaved FNV-1a chains over 64-bit words, each word folded so that high bits reach low ones.
uint64_t hash_bytes(std::span<const std::byte> bytes) {
  constexpr uint64_t kPrime = 0x100000001B3u;
  uint64_t state[4] = {0xCBF29CE484222325u, 0x9E3779B97F4A7C15u, 0xD6E8FEB86659FD93u, 0xA0761D6478BD642Fu};
  size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32) {
    uint64_t word[4];
    std::memcpy(word, bytes.data() + at, 32);
    for (int i = 0; i < 4; ++i) {
      state[i] = (state[i] ^ word[i]) * kPrime;
      state[i] ^= state[i] >> 29;
    }
  }
  for (; at < bytes.size(); ++at) state[0] = (state[0] ^ static_cast<uint64_t>(bytes[at])) * kPrime;
  uint64_t all = bytes.size();
  for (uint64_t s : state) all = ((all ^ s) * kPrime) ^ (all >> 31);
  return all;
}

// Calls piece(chunk, offset, length) for every chunk, in parallel, until one gives false.
template <typename Piece>
bool each_chunk(ThreadPool& pool, size_t size, const Piece& piece) {
  std::atomic<bool> ok = true;
  pool.run(static_cast<int64_t>((size + kChunk - 1) / kChunk), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kChunk, length = std::min(kChunk, size - begin);
    if (ok && !piece(i, begin, length)) ok = false;
  });
  return ok;
}

bool read_all(int fd, std::byte* to, size_t size, size_t at) {
  while (size > 0) {
    const ssize_t got = pread(fd, to, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got, at += static_cast<size_t>(got), size -= static_cast<size_t>(got);
  }
  return true;
}

bool write_all(int fd, const std::byte* from, size_t size, size_t at) {
  while (size > 0) {
    const ssize_t got = pwrite(fd, from, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    from += got, at += static_cast<size_t>(got), size -= static_cast<size_t>(got);
  }
  return true;
}

// What the first kHeader bytes of the file must be.
std::vector<std::byte> header_of(const std::string& key, size_t size, const std::vector<uint64_t>& hashes) {
  const uint64_t checksum = hash_bytes(std::as_bytes(std::span(hashes)));
  const std::string text = fmt::format("{}bytes {}\nchecksum {:016x}\n{}", kMagic, size, checksum, key);
  check(text.size() <= kHeader, "the key of a tile file is longer than its header");
  std::vector<std::byte> header(kHeader);
  std::memcpy(header.data(), text.data(), text.size());
  return header;
}

}  // namespace

bool read_tile_file(const std::string& path, const std::string& key, std::span<std::byte> tiles,
                    ThreadPool& pool) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (file.fd < 0 || fstat(file.fd, &info) != 0) return false;
  if (static_cast<size_t>(info.st_size) != kHeader + tiles.size()) return false;
  std::vector<std::byte> header(kHeader);
  if (!read_all(file.fd, header.data(), kHeader, 0)) return false;
  // The key follows the checksum, whose text has a fixed length; a foreign key saves reading the rest.
  const std::string_view text(reinterpret_cast<const char*>(header.data()), kHeader);
  if (text.find(key) == std::string_view::npos) return false;
  std::vector<uint64_t> hashes((tiles.size() + kChunk - 1) / kChunk);
  const bool read = each_chunk(pool, tiles.size(), [&](int64_t i, size_t begin, size_t length) {
    if (!read_all(file.fd, tiles.data() + begin, length, kHeader + begin)) return false;
    hashes[i] = hash_bytes(tiles.subspan(begin, length));
    return true;
  });
  return read && header == header_of(key, tiles.size(), hashes);
}

std::string write_tile_file(const std::string& path, const std::string& key, std::span<const std::byte> tiles,
                            ThreadPool& pool) {
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  const auto failed = [&] {
    const int error = errno;
    unlink(temporary.c_str());
    return std::string(std::strerror(error));
  };
  const File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.fd < 0) return std::strerror(errno);
  std::vector<uint64_t> hashes((tiles.size() + kChunk - 1) / kChunk);
  std::atomic<int> error = 0;  // errno is a thread's own
  const bool written = each_chunk(pool, tiles.size(), [&](int64_t i, size_t begin, size_t length) {
    hashes[i] = hash_bytes(tiles.subspan(begin, length));
    if (write_all(file.fd, tiles.data() + begin, length, kHeader + begin)) return true;
    error = errno;
    return false;
  });
  if (!written) {
    errno = error;
    return failed();
  }
  const std::vector<std::byte> header = header_of(key, tiles.size(), hashes);
  if (!write_all(file.fd, header.data(), kHeader, 0) || fsync(file.fd) != 0 ||
      rename(temporary.c_str(), path.c_str()) != 0) {
    return failed();
  }
  return {};
}

}  // namespace perigee
