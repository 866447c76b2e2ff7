// The safetensors reader: what is legal is read, every violation is named, and damaged files never do harm.
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <random>

#include "../fuzz/safetensors_check.h"
#include "base/error.h"
#include "make_checkpoint.h"

namespace perigee {

namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i));
  return out + header + std::string(data_bytes, 'x');
}

std::vector<TensorInfo> read(const std::string& bytes) {
  return read_safetensors_header(std::as_bytes(std::span(bytes.data(), bytes.size())), "f.safetensors");
}

std::string error_of(const std::string& bytes) {
  try {
    read(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadFile);
    return e.what();
  }
  return "";
}

// A file below 2 KiB with several dtypes, ranks and an empty tensor.
std::string small_file() {
  return safetensors_bytes({{"a.weight", DType::kBF16, {4, 8}, std::string(64, 'a')},
                            {"b", DType::kF32, {3}, std::string(12, 'b')},
                            {"scalar", DType::kU8, {}, "s"},
                            {"empty", DType::kF32, {0, 5}, ""},
                            {"last", DType::kU8, {2, 3, 4}, std::string(24, 'l')}});
}

}  // namespace

TEST(Safetensors, ReadsInFileOrder) {
  const std::string bytes = small_file();
  const auto t = read(bytes);
  ASSERT_EQ(t.size(), 5u);
  EXPECT_EQ(t[0].name, "a.weight");
  EXPECT_EQ(t[0].shape, (Shape{4, 8}));
  EXPECT_EQ(t[0].dtype, DType::kBF16);
  EXPECT_EQ(bytes.substr(t[1].begin, t[1].end - t[1].begin), std::string(12, 'b'));
  EXPECT_EQ(t.back().end, bytes.size());
}

TEST(Safetensors, LegalOddities) {
  EXPECT_EQ(read(file_of("{}", 0)).size(), 0u);
  EXPECT_EQ(read(file_of("{}   \n ", 0)).size(), 0u);  // padding
  EXPECT_EQ(read(file_of(R"({"__metadata__":{}})", 0)).size(), 0u);
  // Header order need not be file order.
  const auto t = read(file_of(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},
                                  "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                              3));
  EXPECT_EQ(t[0].name, "a");
}

TEST(Safetensors, NamesEveryViolation) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const auto expect = [](const std::string& bytes, const std::string& words) {
    const std::string message = error_of(bytes);
    EXPECT_NE(message.find(words), std::string::npos) << "got: " << message << "\nwanted: " << words;
    EXPECT_NE(message.find("f.safetensors"), std::string::npos) << message;
  };
  expect("", "too few");
  expect("1234567", "too few");
  expect(std::string(8, '\xff'), "claims");
  expect(std::string("\x05\0\0\0\0\0\0\0{}", 10), "claims 5 bytes, but 2 follow");
  expect(file_of("", 0), "does not begin");
  expect(file_of("[]", 0), "does not begin");
  expect(file_of(" {}", 0), "does not begin");
  expect(file_of("{", 0), "not valid JSON");
  expect(file_of(R"({"__metadata__":3})", 0), "__metadata__ is not an object");
  expect(file_of(R"({"__metadata__":{"a":3}})", 0), "__metadata__.a is not a string");
  expect(file_of(R"({"t":1})", 0), "not an object");
  expect(file_of(R"({"t":{"dtype":"U8","shape":[1]}})", 1), "exactly dtype, shape and data_offsets");
  expect(file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1), "exactly");
  expect(file_of(R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "occurs twice");
  expect(
      file_of(
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2),
      "\"t\" occurs twice");
  expect(file_of(one("3", "[1]", "[0,1]"), 1), "dtype is not a string");
  expect(file_of(one("\"Q4\"", "[1]", "[0,1]"), 1), "\"Q4\"");
  expect(file_of(one("\"U8\"", "1", "[0,1]"), 1), "shape is not a list");
  expect(file_of(one("\"U8\"", "[-1]", "[0,1]"), 1), "-1");
  expect(file_of(one("\"U8\"", "[1.0]", "[0,1]"), 1), "non-negative integer");
  expect(file_of(one("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0), "overflows");
  expect(file_of(one("\"F32\"", "[9223372036854775807]", "[0,1]"), 1), "overflows");
  // Products that are right modulo 2^64, or modulo 2^128.
  expect(file_of(one("\"F32\"", "[4611686018427387904]", "[0,0]"), 0), "overflows");
  expect(file_of(one("\"U8\"", "[3,6148914691236517208]", "[0,8]"), 8), "overflows");
  expect(file_of(one("\"U8\"", "[4611686018427387904,4611686018427387904,16]", "[0,0]"), 0), "overflows");
  expect(file_of(one("\"U8\"", "[18446744073709551615]", "[0,1]"), 1), "non-negative integer");
  expect(file_of(one("\"U8\"", "[1]", "[0]"), 1), "list of two");
  expect(file_of(one("\"U8\"", "[1]", "[0,1,2]"), 1), "list of two");
  expect(file_of(one("\"U8\"", "[1]", "[1,0]"), 1), "not inside");
  expect(file_of(one("\"U8\"", "[2]", "[0,2]"), 1), "not inside");
  expect(file_of(one("\"U8\"", "[1]", "[0,9223372036854775807]"), 1), "not inside");
  expect(file_of(one("\"F32\"", "[2]", "[0,4]"), 4), "needs 8 bytes, but data_offsets [0,4] hold 4");
  expect(file_of(one("\"U8\"", "[2]", "[0,2]"), 5), "3 bytes trail");
  expect(file_of(one("\"U8\"", "[2]", "[1,3]"), 3), "1 bytes before it belong to no tensor");
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  expect(file_of(two("[0,2]", "[1,3]"), 3), "tensor b: its bytes overlap those of a by 1");
  expect(file_of(two("[0,2]", "[3,5]"), 5), "tensor b: 1 bytes before it belong to no tensor");
  expect(file_of(two("[0,2]", "[2,4]"), 5), "1 bytes trail");
  expect(file_of(two("[0,2]", "[2,4]"), 3), "tensor b: data_offsets [2,4] are not inside the 3 data bytes");
  expect(file_of(two("[0,2]", "[0,2]"), 2), "tensor b: its bytes overlap those of a by 2");
  EXPECT_EQ(error_of(file_of(two("[0,2]", "[2,4]"), 4)), "");
  expect(file_of("{}", 1), "1 bytes trail");
}

TEST(Safetensors, EveryByteOfASmallFileDamaged) {
  const std::string bytes = small_file();
  ASSERT_LE(bytes.size(), 2048u);
  ASSERT_EQ(error_of(bytes), "");
  int refused = 0, accepted = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string broken = bytes;
      if (broken[at] == static_cast<char>(value)) continue;
      broken[at] = static_cast<char>(value);
      (check_safetensors(broken.data(), broken.size()) ? accepted : refused) += 1;
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_GT(accepted, 10000);  // damage in data, names and metadata is not the reader's to see
}

TEST(Safetensors, EveryPrefixAndExtensionIsRefused) {
  const std::string bytes = small_file();
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(check_safetensors(bytes.data(), n)) << n;
  for (size_t n = 1; n < 20; ++n)
    EXPECT_NE(error_of(bytes + std::string(n, '\0')).find("trail"), std::string::npos);
}

TEST(Safetensors, BytesInsertedAndRemoved) {
  const std::string bytes = small_file();
  for (size_t at = 0; at <= bytes.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string broken = bytes;
      broken.insert(at, 1, static_cast<char>(value));
      EXPECT_FALSE(check_safetensors(broken.data(), broken.size())) << at;
    }
    if (at == bytes.size()) break;
    std::string shorter = bytes;
    shorter.erase(at, 1);
    EXPECT_FALSE(check_safetensors(shorter.data(), shorter.size())) << at;
  }
}

}  // namespace perigee
