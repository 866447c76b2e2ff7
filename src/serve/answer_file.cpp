#include "serve/answer_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "cache/checksum.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

constexpr std::string_view kIdStart = "batch_req_", kLineStart = "{\"id\":\"batch_req_";

// The number of the line that an id speaks of; 0 for no such id.
int64_t line_of(std::string_view id) {
  if (!id.starts_with(kIdStart)) return 0;
  id.remove_prefix(kIdStart.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
  return error == std::errc() && end != id.data() + id.size() && *end == '_' ? number : 0;
}

const json::value* find(const json::value* object, std::string_view key) {
  return object && object->is_object()
             ? object->get_object().if_contains(json::string_view(key.data(), key.size()))
             : nullptr;
}

std::string text_of(const json::value* value) {
  return value && value->is_string() ? std::string(value->get_string()) : "";
}

}  // namespace

AnswerFile::AnswerFile(std::string path, std::string_view fingerprint) : path_(std::move(path)) {
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0)
    fail(ErrorCode::kBadFile, "{}: cannot be written: {}; give a path that can be", path_,
         std::strerror(errno));
  try {
    struct stat status = {};
    if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode))
      fail(ErrorCode::kBadFile,
           "{}: not a file; answers are read again when a run goes on, give a path of one", path_);
    if (flock(file_, LOCK_EX | LOCK_NB) != 0)
      fail(ErrorCode::kBadFile, "{}: another process is writing it; wait for that one, or give another path",
           path_);
    read(fingerprint);
  } catch (...) {
    close(file_);
    throw;
  }
}

AnswerFile::~AnswerFile() { close(file_); }

std::string AnswerFile::id_of(int64_t number, std::string_view text) {
  uint64_t hash = kChecksumStart;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * kChecksumPrime;
  return fmt::format("{}{}_{:016x}", kIdStart, number, hash);
}

void AnswerFile::read(std::string_view fingerprint) {
  std::ifstream in(path_, std::ios::binary);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (in.eof()) {  // without an end
      const size_t known = std::min(line.size(), kLineStart.size());
      if (line.substr(0, known) != kLineStart.substr(0, known))
        fail(ErrorCode::kBadFile, "{}: line {} is not an answer of a batch; give another path", path_,
             number);
      break;
    }
    const auto value = parse_json(line);
    const std::string id = text_of(value ? find(&*value, "id") : nullptr);
    const int64_t request = line_of(id);
    if (request == 0)
      fail(ErrorCode::kBadFile, "{}: line {} is not an answer of a batch; give another path", path_, number);
    const std::string computed_by =
        text_of(find(find(find(&*value, "response"), "body"), "system_fingerprint"));
    if (!computed_by.empty() && computed_by != fingerprint)
      fail(ErrorCode::kBadFile,
           "{}: line {} was computed under {}, and this model and its flags are {}; go on with the same "
           "ones, or "
           "give another path",
           path_, number, computed_by, fingerprint);
    if (!ids_.emplace(request, id).second)
      fail(ErrorCode::kBadFile, "{}: line {} answers request {} a second time; give another path", path_,
           number, request);
    size_ += static_cast<int64_t>(line.size()) + 1;
  }
  if (ftruncate(file_, size_) != 0) fail_write();
}

bool AnswerFile::has(int64_t number, std::string_view text) const {
  const auto found = ids_.find(number);
  if (found == ids_.end()) return false;
  if (found->second != id_of(number, text))
    fail(
        ErrorCode::kBadFile,
        "{}: its answer to request {} is to another text than the request now has; give the requests as they "
        "were, or another path",
        path_, number);
  return true;
}

void AnswerFile::append(std::string_view line) {
  std::string whole(line);
  whole += '\n';
  for (size_t done = 0; done < whole.size();) {
    const ssize_t written = write(file_, whole.data() + done, whole.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      [[maybe_unused]] const int cut = ftruncate(file_, size_);  // else the next run does it
      errno = why;
      fail_write();
    }
    done += static_cast<size_t>(written);
  }
  size_ += static_cast<int64_t>(whole.size());
}

void AnswerFile::flush() {
  if (fdatasync(file_) != 0 && errno != EINVAL) fail_write();
}

void AnswerFile::fail_write() const {
  fail(ErrorCode::kBadFile, "{}: cannot be written: {}; make room and run again, it goes on where it stopped",
       path_, std::strerror(errno));
}

}  // namespace perigee::serve
