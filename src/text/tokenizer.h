// Text to ids and back. Text can never become a control token: control ids come only from segments that say
// so, and every segment is tokenised alone, so that what a user types cannot forge the structure of a prompt.
//
// Input that is not well-formed UTF-8 is tokenised as if each ill-formed part were U+FFFD, as Python's
// errors="replace" would have it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace perigee {

struct Segment {
  std::string text;  // control: the name of a control token
  bool control = false;

  bool operator==(const Segment&) const = default;
};

// Immutable and cheap to copy; every member may be called from any thread.
class Tokenizer {
 public:
  // Reads the files that Vocabulary::load names.
  static Tokenizer load(const std::filesystem::path& folder);
  explicit Tokenizer(Vocabulary vocabulary);

  const Vocabulary& vocabulary() const;

  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<int32_t> encode(std::span<const Segment> segments) const;

  // The bytes of `ids`: pieces as they are (not always UTF-8), control tokens as their names.
  std::string decode(std::span<const int32_t> ids) const;

 private:
  struct Parts;
  void append(std::string_view text, std::vector<int32_t>& ids) const;

  std::shared_ptr<const Parts> parts_;
};

}  // namespace perigee
