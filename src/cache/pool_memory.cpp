#include "cache/pool_memory.h"

#include <sys/mman.h>

#include "base/error.h"

namespace perigee {

PoolMemory::PoolMemory(Memory& memory, int64_t bytes) : memory_(memory), bytes_(bytes) {
  if (bytes == 0) return;
  if (!memory.on_host()) {
    data_ = reinterpret_cast<uint8_t*>(memory.allocate(bytes));
    return;
  }
  void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    fail(ErrorCode::kUnsupported, "{} bytes of address space for the cache were refused; ask for less",
         bytes);
  }
  data_ = static_cast<uint8_t*>(at);
}

PoolMemory::~PoolMemory() {
  if (!data_) return;
  if (memory_.on_host()) {
    munmap(data_, static_cast<size_t>(bytes_));
  } else {
    memory_.release(reinterpret_cast<std::byte*>(data_));
  }
}

}  // namespace perigee
