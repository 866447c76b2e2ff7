// Products y = W x of a stage over tiled weights: activations spread once, then one parallel loop over the
// output blocks of all matrices that read them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/thread_pool.h"
#include "ops/cpu/fast/matrix_kernels.h"
#include "ops/weights.h"

namespace perigee::cpu {

// Rows of activations in the kernels' order, in chunks of kMostProductRows.
struct SpreadRows {
  std::byte* data = nullptr;
  int rows = 0, k = 0;
};

// Called with y[count] of outputs [first, first + count) of one row, and with those of `paired` if there is
// one. Rows and outputs are each seen once, from any thread.
using Sink = std::function<void(int row, int first, int count, const float* y, const float* paired)>;

struct Product {
  TiledMatrix weight;
  TiledMatrix paired = {};  // of the same shape, computed side by side; optional
  int segment = 0;
  int first_output = 0,
      outputs = 0;  // the first is a multiple of the block's outputs; the sink counts from it
  SpreadRows x;
  Sink sink;
};

class Products {
 public:
  Products(const MatrixKernels& kernels, ThreadPool& pool, Arena& arena)
      : kernels_(kernels), pool_(pool), arena_(arena) {}

  struct Rows {
    int rows, k;
    std::function<const bf16*(int row)> row;  // its address
    bool mxfp4 = false;                       // the matrices they meet
  };
  std::vector<SpreadRows> spread(std::span<const Rows> all);
  SpreadRows spread(const bf16* x, int64_t stride, int rows, int k) {
    const Rows one{rows, k, [=](int r) { return x + r * stride; }};
    return spread({&one, 1}).front();
  }

  void run(std::span<const Product> products);

 private:
  // Blocks [begin, end) of a product's outputs.
  void compute(const Product& product, int64_t begin, int64_t end);

  const MatrixKernels& kernels_;
  ThreadPool& pool_;
  Arena& arena_;
};

}  // namespace perigee::cpu
