// RowStore: the tiers behind the pool. It keeps copies of whole rows in host memory and, behind that, in a
// file; a thread of its own copies both ways, so that nobody waits for it. A copy that cannot be read back as
// it was written is reported as lost, never handed out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache/cache_pool.h"

namespace perigee {

struct RowStoreOptions {
  int64_t memory_bytes = 0;
  std::string file;  // made anew and unlinked at once: it lives as long as the store
  int64_t file_bytes = 0;
};

class RowStore {
 public:
  using Key = int64_t;  // of a stored row; 0: none

  // Throws Error{kBadFile} when the file cannot be made, and Error{kUsage} for a tier too small for a row.
  RowStore(CachePool& pool, const RowStoreOptions& options);
  ~RowStore();
  RowStore(const RowStore&) = delete;

  int64_t rows() const { return memory_slots_ + file_slots_; }
  int64_t free_rows() const { return static_cast<int64_t>(free_memory_.size() + free_file_.size()); }

  // Starts to copy a row out; the row is held, and must not be written, until that is done. 0 when the store
  // is full. The newest rows lie in memory; the oldest of them move to the file to make room.
  Key put(const Row& row);
  // Starts to copy a stored row in, to `row`.
  void get(Key key, const Row& row);
  // Forgets a row, whatever is under way.
  void drop(Key key);
  // A copy of it has been completed.
  bool stored(Key key) const;

  // Takes note of what the thread has completed, and returns the rows that were asked for by get().
  struct Arrival {
    Key key = 0;
    Row row;
    bool ok = false;  // false: the copy was damaged or could not be read; it is dropped
  };
  std::vector<Arrival> poll();
  // Adds the references of copies under way to references[row], for CachePool::check_integrity.
  void count_references(std::vector<int64_t>& references) const;
  // Copies are under way, or done and not yet taken note of.
  bool busy() const;
  // Waits until nothing is under way; poll() then returns what came.
  void wait();

 private:
  struct Place {
    bool in_file = false;
    int64_t slot = -1;
  };
  struct Entry {
    Place place;
    bool complete = false;
  };
  enum class Kind { kOut, kIn, kMove };
  struct Job {
    Kind kind = Kind::kOut;
    Key key = 0;
    Row row;  // touched by the owner's thread alone
    uint8_t* data = nullptr;
    Place from, to;
    bool ok = true;
  };

  void start(Job job);
  void work();
  void run(Job& job);
  void copy_out(Job& job, const uint8_t* data);
  uint8_t* memory(int64_t slot) { return memory_.data() + slot * row_bytes_; }
  void give_back(const Place& place);

  Memory& pool_memory_;
  int64_t row_bytes_, memory_slots_, file_slots_;
  PoolMemory memory_;
  int file_ = -1;
  std::vector<int64_t> free_memory_, free_file_;
  std::map<Key, Entry> entries_;  // ascending: oldest first
  std::vector<int64_t> held_;     // [rows of the pool] copies under way
  Key next_key_ = 1;

  // The worker's own.
  std::map<std::pair<bool, int64_t>, uint64_t> checksums_;  // by place
  std::vector<uint8_t> buffer_;

  // Between the threads.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> todo_, done_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace perigee
