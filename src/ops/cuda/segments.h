// The segment rule on CUDA devices: a product's K is cut into equal chains, added left to right. A function
// of K alone, so that it is the same for every part of a matrix that a rank or a lane holds.
#pragma once

namespace perigee::cuda {

constexpr int kMostSegments = 8;
constexpr int kShortestSegment = 128;

// Up to eight segments of at least 128, each a multiple of 32.
constexpr int segments_of(int k) {
  int segments = 1;
  while (segments < kMostSegments && k % (2 * segments * 32) == 0 && k / (2 * segments) >= kShortestSegment)
    segments *= 2;
  return segments;
}

}  // namespace perigee::cuda
