#include "engine/tile_weights.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/progress.h"
#include "engine/tile_file.h"
#include "model/weights_memory.h"

namespace perigee {

namespace {

struct Task {
  AnyMatrix matrix;
  int segments;
  size_t offset;
};

int segments_of(ColumnLanes lanes, const ReductionPlan& plan) {
  if (lanes == ColumnLanes::kNone) return 1;
  return lanes == ColumnLanes::kExpertLanes && plan.moe_lanes_expert ? 1 : plan.lanes;
}

// Everything the bytes of the tiles depend on. The digest samples the weights; the files' sizes and times
// tell of changes between the samples.
std::string key_of(const Weights& weights, const Backend& backend, const std::vector<Task>& tasks) {
  std::string key = fmt::format("layout {}\nweights {}\n", backend.tile_layout(), weights.digest);
  for (const auto& file : weights.files) {
    const auto time = std::filesystem::last_write_time(file->path()).time_since_epoch().count();
    key += fmt::format("{:x} {:x}\n", file->bytes().size(), time);
  }
  uint64_t hash = 0xCBF29CE484222325u;
  for (const Task& t : tasks) {
    for (const uint64_t n : {static_cast<uint64_t>(t.offset), static_cast<uint64_t>(t.segments)})
      hash = (hash ^ n) * 0x100000001B3u;
  }
  if (key.size() > 2048) {  // many files: their list in short
    for (unsigned char c : key) hash = (hash ^ c) * 0x100000001B3u;
    key.resize(key.find('\n', key.find('\n') + 1) + 1);
  }
  return key + fmt::format("matrices {} {:016x}\nend\n", tasks.size(), hash);
}

}  // namespace

std::string tile_file_name(const Weights& weights, const Backend& backend) {
  return fmt::format("perigee-tiles-{}-{}.bin", backend.tile_layout(), weights.digest);
}

void tile_weights(Weights& weights, Backend& backend, const ReductionPlan& plan, const TileOptions& options) {
  std::vector<Task> tasks;
  size_t total = 0;
  for_each_matrix(weights, [&](AnyMatrix matrix, ColumnLanes lanes) {
    const int segments = segments_of(lanes, plan);
    const int64_t bytes = std::visit([&](auto* w) { return backend.tile_bytes(*w, segments); }, matrix);
    if (bytes == 0) return;  // read as it is
    tasks.push_back({matrix, segments, total});
    total += (static_cast<size_t>(bytes) + 63) / 64 * 64;
  });
  if (tasks.empty()) return;

  const auto memory = std::make_shared<Region>(total);
  const std::span<std::byte> tiles(memory->data(), total);
  ThreadPool pool(options.threads);
  const bool keep = !options.folder.empty() && total >= static_cast<size_t>(options.smallest_file);
  const std::string path = keep ? options.folder + "/" + tile_file_name(weights, backend) : "";
  const std::string key = keep ? key_of(weights, backend, tasks) : "";
  if (!keep || !read_tile_file(path, key, tiles, pool)) {
    Progress progress("ordering weights for this CPU",
                      static_cast<int64_t>(options.show_progress ? total : 0), 1e9, "GB");
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Task& t = tasks[i];
      std::visit([&](auto* w) { backend.tile(*w, t.segments, memory->data() + t.offset); }, t.matrix);
      const size_t end = i + 1 < tasks.size() ? tasks[i + 1].offset : total;
      progress.advance(static_cast<int64_t>(end - t.offset));
    }
    if (keep) {
      const std::string error = write_tile_file(path, key, tiles, pool);
      if (!error.empty()) fmt::print(stderr, "{}: not kept for the next start: {}\n", path, error);
    }
  }
  for (const Task& t : tasks) {
    std::visit([&](auto* w) { w->tiles = {.data = memory->data() + t.offset, .segments = t.segments}; },
               t.matrix);
  }
  weights.owners.push_back(memory);
  for (const auto& file : weights.files) file->release();  // the row-major matrices are not read again
}

}  // namespace perigee
