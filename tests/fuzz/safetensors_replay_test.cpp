// The fuzz property without libFuzzer: the committed corpus, and a fixed number of seeded mutations of it, so
// that every compiler runs them.
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "corpus.h"
#include "model/safetensors.h"
#include "safetensors_check.h"
#include "safetensors_mutator.h"

namespace perigee {

namespace {

// The reader's complaint, "" when it has none.
std::string complaint(const std::string& bytes) {
  try {
    read_safetensors_header(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string mutate(std::string bytes, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  static const std::string kPieces[] = {"\"dtype\":",
                                        "\"shape\":[",
                                        "\"data_offsets\":[0,",
                                        "9223372036854775807",
                                        "-1",
                                        "1e9",
                                        "\"BF16\"",
                                        "{}",
                                        "[]",
                                        "null",
                                        "__metadata__",
                                        "\\u0000",
                                        ",",
                                        "}"};
  for (uint64_t n = 0; n < 1 + random() % 4; ++n) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 8) {
      case 6:
        bytes = change_a_number(bytes, random);
        break;
      case 7:
        bytes = faulty_safetensors(static_cast<Fault>(random() % kFaults), random);
        break;
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, random() % 9);
        break;
      case 2:
        bytes.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 3: {  // splice in a stretch of another file
        const std::string& other = seeds[random() % seeds.size()];
        bytes.insert(at, other.substr(random() % other.size(), random() % 40));
        break;
      }
      case 4:  // a small change of the header length
        if (!bytes.empty()) bytes[0] = static_cast<char>(bytes[0] + static_cast<int>(random() % 9) - 4);
        break;
      default:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
    }
  }
  return bytes;
}

}  // namespace

TEST(SafetensorsReplay, EveryFaultIsNamed) {
  const std::pair<Fault, const char*> kWords[kFaults] = {{Fault::kNone, ""},
                                                         {Fault::kOverlap, "overlap those of"},
                                                         {Fault::kGap, "belong to no tensor"},
                                                         {Fault::kTrailing, "trail"},
                                                         {Fault::kOverflow, "overflows"},
                                                         {Fault::kShape, "needs"},
                                                         {Fault::kOutOfFile, "not inside"},
                                                         {Fault::kDuplicate, "occurs twice"}};
  std::mt19937_64 random(7);
  for (const auto& [fault, words] : kWords) {
    for (int round = 0; round < 500; ++round) {
      const std::string bytes = faulty_safetensors(fault, random);
      const std::string message = complaint(bytes);
      ASSERT_EQ(message.empty(), fault == Fault::kNone) << message << "\n" << bytes;
      ASSERT_NE(message.find(words), std::string::npos) << message << "\nwanted: " << words << "\n" << bytes;
      ASSERT_EQ(check_safetensors(bytes.data(), bytes.size()), fault == Fault::kNone) << bytes;
    }
  }
}

TEST(SafetensorsReplay, AChangedNumberLeavesTheHeadersLengthTrue) {
  std::mt19937_64 random(8);
  const std::string bytes = faulty_safetensors(Fault::kNone, random);
  int past_the_json = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::string message = complaint(change_a_number(bytes, random));
    past_the_json += message.find("tensor ") != std::string::npos;
  }
  EXPECT_GT(past_the_json, 900);
  EXPECT_EQ(with_header_text(bytes, header_text(bytes)), bytes);
}

TEST(SafetensorsReplay, CorpusAndMutations) {
  const std::vector<std::string> seeds = read_corpus("safetensors");
  ASSERT_GE(seeds.size(), 3u);
  for (const std::string& s : seeds) check_safetensors(s.data(), s.size());
  std::mt19937_64 random(20261130);
  int accepted = 0;
  for (int run = 0; run < 50000; ++run) {
    const std::string bytes = mutate(seeds[random() % seeds.size()], seeds, random);
    accepted += check_safetensors(bytes.data(), bytes.size());
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace perigee
