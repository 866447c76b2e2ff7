// The file that a batch's answers go to, a line each, whole lines only. What lies there already are the
// answers of an earlier run of the same requests: they are kept and not asked again, so that a run which was
// killed goes on where it was.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace perigee::serve {

class AnswerFile {
 public:
  // Opens or makes it, for this process alone, and reads what is there; the part of a line that a killed run
  // left at its end is cut off. Throws Error{kBadFile} when it cannot be written or holds anything but
  // answers of requests under `fingerprint` (the numerics identity as answers name it): nothing is changed
  // then.
  AnswerFile(std::string path, std::string_view fingerprint);
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;

  // The id of the answer to the request in line `number` (from 1), which is `text`.
  static std::string id_of(int64_t number, std::string_view text);
  // Whether line `number` has its answer. Throws Error{kBadFile} when that is to another text.
  bool has(int64_t number, std::string_view text) const;
  size_t answers() const { return ids_.size(); }  // that were there
  const std::string& path() const { return path_; }

  // Appends a line; `line` has no end. Throws Error{kBadFile} when it cannot be written; the file then still
  // ends with a whole line, unless even that fails.
  void append(std::string_view line);
  // Onto the disk.
  void flush();

 private:
  void read(std::string_view fingerprint);
  [[noreturn]] void fail_write() const;

  std::string path_;
  int file_ = -1;
  int64_t size_ = 0;                    // of the whole lines
  std::map<int64_t, std::string> ids_;  // by line of the requests
};

}  // namespace perigee::serve
