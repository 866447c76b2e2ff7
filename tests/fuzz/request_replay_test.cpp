// The property of request_check.h without libFuzzer: the committed corpus and seeded mutations of it, so that
// every compiler runs them.
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "corpus.h"
#include "request_check.h"

namespace perigee {

namespace {

std::string mutate(std::string bytes, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  static const std::string kPieces[] = {"null",
                                        "true",
                                        "-1",
                                        "1e999",
                                        "{}",
                                        "[]",
                                        "\"\"",
                                        ",",
                                        "}",
                                        "\\u0000",
                                        "\\ud800",
                                        "\xff",
                                        "\"$ref\":\"#\"",
                                        "9223372036854775807",
                                        "\"n\":3,"};
  for (uint64_t n = 0; n < 1 + random() % 3; ++n) {
    const size_t at = bytes.size() < 2 ? 0 : 1 + random() % (bytes.size() - 1);
    switch (random() % 5) {
      case 0:
        bytes.erase(at, random() % 9);
        break;
      case 1:
        bytes.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 2: {  // a stretch of another
        const std::string& other = seeds[random() % seeds.size()];
        bytes.insert(at, other.substr(random() % other.size(), random() % 40));
        break;
      }
      case 3: {  // a word for another
        const size_t colon = bytes.find(':', at);
        if (colon != std::string::npos && colon + 1 < bytes.size())
          bytes.replace(colon + 1, random() % 8, kPieces[random() % std::size(kPieces)]);
        break;
      }
      default:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
    }
  }
  return bytes;
}

}  // namespace

TEST(RequestReplay, CorpusAndMutations) {
  const std::vector<std::string> seeds = read_corpus("requests");
  ASSERT_GE(seeds.size(), 15u);
  for (const std::string& s : seeds) EXPECT_TRUE(check_request(s.data(), s.size())) << s;
  std::mt19937_64 random(20261130);
  int taken = 0;
  for (int run = 0; run < 5000; ++run) {
    const std::string bytes = mutate(seeds[random() % seeds.size()], seeds, random);
    taken += check_request(bytes.data(), bytes.size());
  }
  EXPECT_GT(taken, 500);
}

}  // namespace perigee
