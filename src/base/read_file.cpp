#include "base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace perigee {

std::string read_file(const std::string& path, ErrorCode code, const std::string& label) {
  const std::string& what = label.empty() ? path : label;
  std::string bytes;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int error = fd < 0 ? errno : 0;
  char block[1 << 16];
  while (error == 0 && bytes.size() <= kMaxTextFile) {
    const ssize_t got = read(fd, block, sizeof block);
    if (got > 0)
      bytes.append(block, static_cast<size_t>(got));
    else if (got == 0)
      break;
    else if (errno != EINTR)
      error = errno;
  }
  if (fd >= 0) close(fd);
  if (error != 0)
    fail(code, "{}: cannot be read: {}; check the path and its permissions", what, std::strerror(error));
  if (bytes.size() > kMaxTextFile)
    fail(code, "{}: more than {} bytes are too many for a file of this kind; check that it is the right one",
         what, kMaxTextFile);
  return bytes;
}

}  // namespace perigee
