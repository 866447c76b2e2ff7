#include "cache/row_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "cache/checksum.h"

namespace perigee {

RowStore::RowStore(CachePool& pool, const RowStoreOptions& options)
    : pool_memory_(pool.memory()),
      row_bytes_(pool.plan().row_bytes()),
      memory_slots_(options.memory_bytes / row_bytes_),
      file_slots_(options.file.empty() ? 0 : options.file_bytes / row_bytes_),
      memory_(host_memory(), memory_slots_ * row_bytes_),
      free_memory_(memory_slots_),
      free_file_(file_slots_),
      held_(pool.rows(), 0),
      buffer_(row_bytes_) {
  for (const auto& [tier, bytes] : {std::pair("host memory", options.memory_bytes),
                                    std::pair("a file", options.file.empty() ? 0 : options.file_bytes)}) {
    if (bytes > 0 && bytes < row_bytes_)
      fail(ErrorCode::kUsage, "{} bytes of {} hold no row of the cache, which has {}; give at least as many",
           bytes, tier, row_bytes_);
  }
  if (file_slots_ > 0) {
    file_ = open(options.file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file_ < 0) {
      fail(ErrorCode::kBadFile, "{}: cannot be made for the cache: {}; name a file that does not exist yet",
           options.file, std::strerror(errno));
    }
    unlink(options.file.c_str());
  }
  std::iota(free_memory_.rbegin(), free_memory_.rend(), 0);
  std::iota(free_file_.rbegin(), free_file_.rend(), 0);
  thread_ = std::thread([this] { work(); });
}

RowStore::~RowStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (file_ >= 0) close(file_);
}

RowStore::Key RowStore::put(const Row& row) {
  const auto take = [](std::vector<int64_t>& free) {
    const int64_t slot = free.back();
    free.pop_back();
    return slot;
  };
  Place place;
  if (free_memory_.empty() && !free_file_.empty()) {
    for (auto& [key, entry] : entries_) {  // the oldest in memory makes room
      if (entry.place.in_file || !entry.complete) continue;
      const Place to{.in_file = true, .slot = take(free_file_)};
      free_memory_.push_back(entry.place.slot);
      start({.kind = Kind::kMove, .key = key, .row = {}, .from = entry.place, .to = to});
      entry.place = to;  // jobs run in order, so later ones find it there
      break;
    }
  }
  if (!free_memory_.empty()) {
    place = {.in_file = false, .slot = take(free_memory_)};
  } else if (!free_file_.empty()) {
    place = {.in_file = true, .slot = take(free_file_)};
  } else {
    return 0;
  }
  const Key key = next_key_++;
  entries_[key] = {.place = place};
  start({.kind = Kind::kOut, .key = key, .row = row, .data = row.data(), .from = {}, .to = place});
  return key;
}

void RowStore::get(Key key, const Row& row) {
  const auto it = entries_.find(key);
  check(it != entries_.end(), "RowStore::get: a stored row");
  start({.kind = Kind::kIn, .key = key, .row = row, .data = row.data(), .from = it->second.place, .to = {}});
}

void RowStore::drop(Key key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  give_back(it->second.place);  // a job that takes the place next runs after those that use it now
  entries_.erase(it);
}

bool RowStore::stored(Key key) const {
  const auto it = entries_.find(key);
  return it != entries_.end() && it->second.complete;
}

std::vector<RowStore::Arrival> RowStore::poll() {
  std::deque<Job> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  std::vector<Arrival> arrivals;
  for (Job& job : done) {
    const auto it = entries_.find(job.key);
    if (job.row) --held_[job.row.id()];
    if (job.kind == Kind::kIn) arrivals.push_back({.key = job.key, .row = std::move(job.row), .ok = job.ok});
    if (it == entries_.end()) continue;
    if (!job.ok) {
      drop(job.key);
    } else if (job.kind == Kind::kOut) {
      it->second.complete = true;
    }
  }
  return arrivals;
}

void RowStore::count_references(std::vector<int64_t>& references) const {
  for (size_t row = 0; row < held_.size(); ++row) references[row] += held_[row];
}

bool RowStore::busy() const {
  return std::any_of(held_.begin(), held_.end(), [](int64_t n) { return n > 0; });
}

void RowStore::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return todo_.empty() && !busy_; });
}

void RowStore::start(Job job) {
  if (job.row) ++held_[job.row.id()];
  {
    const std::lock_guard lock(mutex_);
    todo_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void RowStore::give_back(const Place& place) {
  (place.in_file ? free_file_ : free_memory_).push_back(place.slot);
}

void RowStore::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !todo_.empty(); });
    if (stop_) return;
    Job job = std::move(todo_.front());  // moved, never copied: this thread leaves the reference counts alone
    todo_.pop_front();
    busy_ = true;
    lock.unlock();
    run(job);
    lock.lock();
    busy_ = false;
    done_.push_back(std::move(job));
    changed_.notify_all();
  }
}

void RowStore::run(Job& job) {
  uint8_t* data = buffer_.data();
  if (job.kind == Kind::kOut) {
    pool_memory_.download(data, job.data, row_bytes_);
    return copy_out(job, data);
  }
  if (job.from.in_file) {
    job.ok = pread(file_, data, row_bytes_, job.from.slot * row_bytes_) == row_bytes_;
  } else {
    std::memcpy(data, memory(job.from.slot), row_bytes_);
  }
  job.ok = job.ok && checksum(data, row_bytes_) == checksums_[{job.from.in_file, job.from.slot}];
  if (job.kind == Kind::kMove && job.ok) copy_out(job, data);
  if (job.kind == Kind::kIn)
    pool_memory_.upload(job.data, data, row_bytes_);  // damaged too: the row is dropped
}

void RowStore::copy_out(Job& job, const uint8_t* data) {
  if (job.to.in_file) {
    job.ok = pwrite(file_, data, row_bytes_, job.to.slot * row_bytes_) == row_bytes_;
  } else {
    std::memcpy(memory(job.to.slot), data, row_bytes_);
  }
  checksums_[{job.to.in_file, job.to.slot}] = checksum(data, row_bytes_);
}

}  // namespace perigee
