// A file that keeps the tiles of a model's weights between runs: a header that says what they are tiles of,
// and the bytes. A file that is not exactly what is asked for is as good as none.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/thread_pool.h"

namespace perigee {

// Fills `tiles` from the file; false when there is none, or when its key, length or checksum differs.
bool read_tile_file(const std::string& path, const std::string& key, std::span<std::byte> tiles,
                    ThreadPool& pool);

// Writes the file under another name first, so that `path` is never half a file. Returns why it could not.
std::string write_tile_file(const std::string& path, const std::string& key, std::span<const std::byte> tiles,
                            ThreadPool& pool);

}  // namespace perigee
