#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/error.h"

namespace perigee {
namespace {

// The published pattern is written for Rust's engine; three of its notations mean something else in PCRE2:
//   [X&&[^\p{Han}]]  class intersection        -> (?!\p{sc:Han})[X]
//   \p{Han}          PCRE2 takes it as the script extensions, which hold punctuation -> \p{sc:Han}
//   \s               PCRE2's holds U+180E too  -> the White_Space property spelled out
#define PERIGEE_SPACE R"(\t-\r\x{85}\p{Z})"
#define PERIGEE_UPPER R"((?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))"
#define PERIGEE_LOWER R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))"
#define PERIGEE_LEAD R"([^\r\n\p{L}\p{N}]?)"
#define PERIGEE_CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
constexpr std::string_view kPattern =
    R"(\p{sc:Han}+)"
    "|" PERIGEE_LEAD PERIGEE_UPPER "*" PERIGEE_LOWER "+" PERIGEE_CONTRACTION "|" PERIGEE_LEAD PERIGEE_UPPER
    "+" PERIGEE_LOWER "*" PERIGEE_CONTRACTION R"(|\p{N}{1,3})"
    "| ?[^" PERIGEE_SPACE R"(\p{L}\p{N}]+[\r\n]*)"
    "|[" PERIGEE_SPACE R"(]*[\r\n]+)"
    "|[" PERIGEE_SPACE "]+(?![^" PERIGEE_SPACE
    "])"
    "|[" PERIGEE_SPACE "]+";
#undef PERIGEE_SPACE
#undef PERIGEE_UPPER
#undef PERIGEE_LOWER
#undef PERIGEE_LEAD
#undef PERIGEE_CONTRACTION

std::string pcre2_message(int code) {
  char buffer[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

// What one thread needs to match. The longest part has 25 000 characters in a run, each of which may leave a
// backtracking point on the JIT stack.
struct Matcher {
  Matcher()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(size_t{64} << 10, size_t{16} << 20, nullptr)) {
    check(data && context && stack, "PCRE2: out of memory");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Matcher() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Matcher(const Matcher&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

struct Pretokenizer::Pattern {
  Pattern() {
    int error = 0;
    size_t at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
    if (!code) fail(ErrorCode::kInternal, "PCRE2 rejects the pattern at {}: {}", at, pcre2_message(error));
    pcre2_jit_compile(code,
                      PCRE2_JIT_COMPLETE);  // without JIT, pcre2_match interprets: slower, the same answers
  }
  ~Pattern() { pcre2_code_free(code); }

  pcre2_code* code;
};

Pretokenizer::Pretokenizer() : pattern_(std::make_unique<Pattern>()) {}
Pretokenizer::~Pretokenizer() = default;

std::string_view Pretokenizer::pattern() { return kPattern; }

size_t Pretokenizer::match(std::string_view text, size_t at) const {
  thread_local Matcher matcher;
  const int rc = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                             PCRE2_NO_UTF_CHECK, matcher.data, matcher.context);
  if (rc < 0)
    fail(ErrorCode::kInternal, "pre-tokeniser at byte {} of {}: {}", at, text.size(), pcre2_message(rc));
  const size_t length = pcre2_get_ovector_pointer(matcher.data)[1] - at;
  check(length > 0, "the pre-tokeniser's pattern matched nothing");
  return length;
}

}  // namespace perigee
