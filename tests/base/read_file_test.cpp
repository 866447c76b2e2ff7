#include "base/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace perigee {
namespace {

std::string message_of(const std::string& path, const std::string& label = "") {
  try {
    read_file(path, ErrorCode::kUsage, label);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

struct Folder {
  Folder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = "/tmp/perigee-read-file-XXXXXX";
};

TEST(ReadFile, GivesTheBytesAsTheyAre) {
  const Folder folder;
  const std::string path = folder.path + "/f";
  std::string bytes(200'000, 'x');
  bytes[7] = '\0';
  bytes += "\r\n\xff";
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(read_file(path), bytes);
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(read_file(path), "");
}

TEST(ReadFile, ReadsAPipe) {
  const Folder folder;
  const std::string path = folder.path + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "through a pipe"; });
  EXPECT_EQ(read_file(path), "through a pipe");
  writer.join();
}

TEST(ReadFile, ErrorsNameFileAndReason) {
  const Folder folder;
  EXPECT_EQ(message_of(folder.path),
            folder.path + ": cannot be read: Is a directory; check the path and its permissions");
  EXPECT_EQ(message_of(folder.path + "/none", "--tools none"),
            "--tools none: cannot be read: No such file or directory; check the path and its permissions");
  EXPECT_NE(message_of("/dev/zero").find("too many"), std::string::npos);  // a file without an end
}

}  // namespace
}  // namespace perigee
