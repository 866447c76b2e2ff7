// Mutations that know the safetensors format, for libFuzzer and for the replay without it. Random changes of
// bytes almost never get past the JSON and the sizes to the checks of the layout; these do.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace perigee {

// What is wrong with a file that is right otherwise: sizes, shapes and the header's length all agree.
enum class Fault {
  kNone,
  kOverlap,    // a tensor begins 1 to 3 bytes before the end of the one before it
  kGap,        // 1 to 3 bytes between two tensors belong to none
  kTrailing,   // 1 to 3 bytes follow the last tensor
  kOverflow,   // a shape whose bytes are right modulo 2^64 alone
  kShape,      // a shape with one element more than the offsets hold
  kOutOfFile,  // the file ends 1 to 3 bytes before the last tensor does
  kDuplicate,  // two tensors of one name
};
inline constexpr int kFaults = 8;

// A file of two to four tensors with this fault.
std::string faulty_safetensors(Fault fault, std::mt19937_64& random);

// `bytes` with one number of its header changed by a little, or to the edge of an integer's range.
std::string change_a_number(const std::string& bytes, std::mt19937_64& random);

// The header's text, and the file with another text in its place and the length before it to match.
std::string header_text(const std::string& bytes);
std::string with_header_text(const std::string& bytes, const std::string& text);

}  // namespace perigee
