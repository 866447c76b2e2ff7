#include "cli/streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"
#include "text/utf8.h"

namespace perigee::cli {

void open_closed_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd)
      _exit(1);  // the lowest free number is fd, unless all else fails
  }
}

void flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  fail(ErrorCode::kBadFile, "stdout: cannot be written: {}; the output is not whole",
       errno ? std::strerror(errno) : "an earlier write failed");
}

void print_error(std::string_view message) {
  std::string line;
  while (!message.empty()) {
    const Utf8Step step = utf8_step(message);
    const std::string_view part = message.substr(0, step.length);
    const bool control = step.codepoint < 0x20 || (step.codepoint >= 0x7F && step.codepoint < 0xA0);
    if (step.kind == Utf8Step::kValid && !control)
      line += part;
    else
      for (char byte : part) line += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    message.remove_prefix(step.length);
  }
  line = "perigee: " + line + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace perigee::cli
