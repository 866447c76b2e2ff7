// The fast backend's tiles of the model's matrices.
#include "ops/cpu/fast/backend.h"

namespace perigee::cpu {

namespace {

// Every thread writes a share of each matrix, so that its pages spread over the memory of all NUMA nodes, as
// the threads that read them do.
template <typename Weight>
void tile_all(ThreadPool& pool, const Weight& w, int segments, std::byte* out) {
  const TileShape shape = tile_shape(w, segments);
  pool.run(shape.blocks(),
           [&](int64_t block) { tile_block(w, shape, block, out + block * shape.block_bytes()); });
}

}  // namespace

int64_t FastBackend::tile_bytes(const Linear& w, int segments) const {
  return tile_shape(w, segments).bytes();
}
int64_t FastBackend::tile_bytes(const Mxfp4Linear& w, int segments) const {
  const TileShape shape = tile_shape(w, segments);
  return mxfp4_segments_fit(shape.columns()) ? shape.bytes() : 0;
}
void FastBackend::tile(const Linear& w, int segments, std::byte* out) { tile_all(pool_, w, segments, out); }
void FastBackend::tile(const Mxfp4Linear& w, int segments, std::byte* out) {
  tile_all(pool_, w, segments, out);
}

std::string FastBackend::tile_layout() const { return "x86-v2"; }

}  // namespace perigee::cpu
