#include "cli/tier_flags.h"

#include "base/error.h"
#include "cli/validators.h"

namespace perigee::cli {

void TierFlags::add_to(CLI::App& app) {
  const auto group = [](CLI::Option* option) { option->group("Tiers of the cache"); };
  group(app.add_option("--kv-offloading-size", memory,
                       "GiB of host memory for cached prefixes that the cache has no room for; 0: none")
            ->check(number(0, 1e6)));
  group(app.add_option("--kv-offloading-file", file,
                       "a file for those that host memory has no room for; made anew, gone at the end")
            ->check(not_empty()));
  group(app.add_option("--kv-offloading-file-size", file_size, "GiB of that file")->check(number(0, 1e6)));
}

RowStoreOptions TierFlags::options() const {
  if (file.empty() && file_size > 0)
    fail(ErrorCode::kUsage, "--kv-offloading-file-size {} without --kv-offloading-file; name the file",
         file_size);
  if (!file.empty() && file_size <= 0)
    fail(ErrorCode::kUsage,
         "--kv-offloading-file {} without --kv-offloading-file-size; say how many GiB it may take", file);
  constexpr double kGiB = 1 << 30;
  return {.memory_bytes = static_cast<int64_t>(memory * kGiB),
          .file = file,
          .file_bytes = static_cast<int64_t>(file_size * kGiB)};
}

}  // namespace perigee::cli
