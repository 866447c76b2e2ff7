// The tokenizer as a filter, for tests in other languages. `encode_lines FOLDER`: reads records (u32 length,
// bytes) from stdin and answers each with (u32 count, i32 ids); little-endian. `encode_lines FOLDER --time
// N`: tokenises all of stdin N times and prints the CPU seconds and the number of ids of each, one a line.
// `encode_lines --assigned`: prints the ranges of code points that PCRE2's Unicode tables assign, surrogates
// left out.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <time.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "text/tokenizer.h"

namespace {

void answer_records(const perigee::Tokenizer& tokenizer) {
  std::string text;
  for (uint32_t length; std::fread(&length, sizeof(length), 1, stdin) == 1;) {
    text.resize(length);
    if (length && std::fread(text.data(), length, 1, stdin) != 1)
      perigee::fail(perigee::ErrorCode::kUsage, "stdin ends inside a record");
    const std::vector<int32_t> ids = tokenizer.encode(text);
    const uint32_t count = static_cast<uint32_t>(ids.size());
    std::fwrite(&count, sizeof(count), 1, stdout);
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
    std::fflush(stdout);
  }
}

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void time_text(const perigee::Tokenizer& tokenizer, int repeats) {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  for (int i = 0; i < repeats; ++i) {
    const double start = thread_seconds();
    const size_t count = tokenizer.encode(text).size();
    std::printf("%.9f %zu\n", thread_seconds() - start, count);
  }
}

void print_assigned() {
  int error = 0;
  size_t at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>("\\P{Cn}"), PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  const auto assigned = [&](uint32_t c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return false;
    uint8_t utf8[4];
    size_t n = 0;
    if (c < 0x80) {
      utf8[n++] = static_cast<uint8_t>(c);
    } else {
      const size_t extra = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
      utf8[n++] = static_cast<uint8_t>((0xFF00 >> (extra + 1) & 0xFF) | c >> (6 * extra));
      for (size_t i = extra; i-- > 0;) utf8[n++] = static_cast<uint8_t>(0x80 | (c >> (6 * i) & 0x3F));
    }
    return pcre2_match(code, utf8, n, 0, 0, data, nullptr) >= 0;
  };
  for (uint32_t c = 0, begin = 0, inside = 0; c <= 0x110000; ++c) {
    const bool now = assigned(c);
    if (now && !inside) begin = c;
    if (!now && inside) std::printf("%X %X\n", begin, c - 1);
    inside = now;
  }
  pcre2_match_data_free(data);
  pcre2_code_free(code);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first == "--assigned") {
      print_assigned();
    } else if (argc == 4 && std::string(argv[2]) == "--time") {
      time_text(perigee::Tokenizer::load(first), std::stoi(argv[3]));
    } else if (argc == 2) {
      answer_records(perigee::Tokenizer::load(first));
    } else {
      std::fprintf(stderr, "usage: encode_lines FOLDER [--time N] | encode_lines --assigned\n");
      return 2;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encode_lines: %s\n", e.what());
    return 1;
  }
  return 0;
}
