// Matrix products of a warpgroup (Hopper's wgmma): 64 rows of A times N rows of B into fp32 registers, run by
// four warps together and asynchronously. A product over 16 values of K gives the bits of mma.cuh's
// instruction on the same values, for every N, and with A and B exchanged (measured: docs/numerics.md).
//
// A tile of shared memory is that of mma.cuh (rows of 64 values, pieces permuted by the row's number): the
// instruction's 128-byte swizzle, as long as the tile starts at a multiple of 1,024 bytes.
#pragma once

#include "ops/cuda/mma.cuh"

namespace perigee::cuda {

constexpr int kWarpgroup = 128;  // threads; the first one's number is a multiple of it
constexpr int kGroupRows = 64;   // rows of A in one product

// Where an operand lies in shared memory.
//   K along the rows of a tile (the usual case): row r of the operand is row r of the tile; 16 values of K
//   further is `operand + kNextStep`. K down the rows ("down"): row k of a tile holds value k of 64 rows of
//   the operand, the next 64 rows lie in a tile `tile_bytes` further; 16 values of K further is `operand +
//   kNextStepDown`.
constexpr uint64_t kNextStep = kStepK * sizeof(bf16) / 16;
constexpr uint64_t kNextStepDown = kStepK * kTileK * sizeof(bf16) / 16;
__device__ inline uint64_t operand(const void* tile, int tile_bytes = 16) {
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32, kSwizzle128 = uint64_t{1} << 62;
  return (shared_address(tile) >> 4 & 0x3FFFu) | static_cast<uint64_t>(tile_bytes >> 4 & 0x3FFF) << 16 |
         kEightRows | kSwizzle128;
}

// What this thread has written to shared memory (stores, cp.async copies that have come) may be read by
// products once a barrier stands between.
__device__ inline void publish_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// How many registers a thread of this warpgroup has from here on; multiples of 8.
template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A run of products is start, multiply…, commit. Nothing touches its accumulators, its A in registers or its
// tiles until wait_products says that it is done.
__device__ inline void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `kPending` runs of this warpgroup are under way.
template <int kPending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler keeps uses of these registers on their side of this place.
template <int kCount>
__device__ inline void pin(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// multiply_async: c[64, 2 · kCount] += A[64, 16] · B[2 · kCount, 16]ᵀ, A from shared memory or, a FragmentA a
// warp, from registers. Warp w of the group has rows 16w … 16w + 15: thread 4g + t holds columns 8j + 2t, 8j
// + 2t + 1 of row g in c[4j], c[4j + 1], and of row g + 8 in c[4j + 2], c[4j + 3].
// clang-format off
#define PERIGEE_D0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define PERIGEE_D1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define PERIGEE_D2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define PERIGEE_D3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define PERIGEE_D4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define PERIGEE_D5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define PERIGEE_D6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define PERIGEE_D7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define PERIGEE_D8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define PERIGEE_D9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define PERIGEE_D10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define PERIGEE_D11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define PERIGEE_D12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define PERIGEE_D13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define PERIGEE_D14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define PERIGEE_D15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define PERIGEE_C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define PERIGEE_C8(i) PERIGEE_C4(i), PERIGEE_C4(i + 4)
#define PERIGEE_PRODUCT(N, D) "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" D "}, "

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[4], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(8, "%0,%1,%2,%3") "%4, %5, p, 1, 1, %6, %7;\n}"
               : PERIGEE_C4(0)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[4], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(8, "%0,%1,%2,%3") "{%4,%5,%6,%7}, %8, p, 1, 1, %9;\n}"
               : PERIGEE_C4(0)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[8], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(16, PERIGEE_D0) "%8, %9, p, 1, 1, %10, %11;\n}"
               : PERIGEE_C8(0)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[8], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(16, PERIGEE_D0) "{%8,%9,%10,%11}, %12, p, 1, 1, %13;\n}"
               : PERIGEE_C8(0)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[16], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(32, PERIGEE_D0 "," PERIGEE_D1) "%16, %17, p, 1, 1, %18, %19;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[16], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(32, PERIGEE_D0 "," PERIGEE_D1) "{%16,%17,%18,%19}, %20, p, 1, 1, %21;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[32], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(64, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3) "%32, %33, p, 1, 1, %34, %35;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[32], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(64, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3) "{%32,%33,%34,%35}, %36, p, 1, 1, %37;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[48], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(96, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5) "%48, %49, p, 1, 1, %50, %51;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[48], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(96, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5) "{%48,%49,%50,%51}, %52, p, 1, 1, %53;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[64], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(128, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7) "%64, %65, p, 1, 1, %66, %67;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[64], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(128, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7) "{%64,%65,%66,%67}, %68, p, 1, 1, %69;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[80], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(160, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "," PERIGEE_D8 "," PERIGEE_D9) "%80, %81, p, 1, 1, %82, %83;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56), PERIGEE_C8(64), PERIGEE_C8(72)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[80], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(160, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "," PERIGEE_D8 "," PERIGEE_D9) "{%80,%81,%82,%83}, %84, p, 1, 1, %85;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56), PERIGEE_C8(64), PERIGEE_C8(72)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[96], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(192, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "," PERIGEE_D8 "," PERIGEE_D9 "," PERIGEE_D10 "," PERIGEE_D11) "%96, %97, p, 1, 1, %98, %99;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56), PERIGEE_C8(64), PERIGEE_C8(72), PERIGEE_C8(80), PERIGEE_C8(88)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[96], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(192, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "," PERIGEE_D8 "," PERIGEE_D9 "," PERIGEE_D10 "," PERIGEE_D11) "{%96,%97,%98,%99}, %100, p, 1, 1, %101;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56), PERIGEE_C8(64), PERIGEE_C8(72), PERIGEE_C8(80), PERIGEE_C8(88)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

template <bool kDownA = false, bool kDownB = false>
__device__ inline void multiply_async(float (&c)[128], uint64_t a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(256, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "," PERIGEE_D8 "," PERIGEE_D9 "," PERIGEE_D10 "," PERIGEE_D11 "," PERIGEE_D12 "," PERIGEE_D13 "," PERIGEE_D14 "," PERIGEE_D15) "%128, %129, p, 1, 1, %130, %131;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56), PERIGEE_C8(64), PERIGEE_C8(72), PERIGEE_C8(80), PERIGEE_C8(88), PERIGEE_C8(96), PERIGEE_C8(104), PERIGEE_C8(112), PERIGEE_C8(120)
               : "l"(a), "l"(b), "n"(kDownA), "n"(kDownB));
}
template <bool kDownB = false>
__device__ inline void multiply_async(float (&c)[128], const FragmentA& a, uint64_t b) {
  asm volatile(PERIGEE_PRODUCT(256, PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "," PERIGEE_D8 "," PERIGEE_D9 "," PERIGEE_D10 "," PERIGEE_D11 "," PERIGEE_D12 "," PERIGEE_D13 "," PERIGEE_D14 "," PERIGEE_D15) "{%128,%129,%130,%131}, %132, p, 1, 1, %133;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56), PERIGEE_C8(64), PERIGEE_C8(72), PERIGEE_C8(80), PERIGEE_C8(88), PERIGEE_C8(96), PERIGEE_C8(104), PERIGEE_C8(112), PERIGEE_C8(120)
               : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "l"(b), "n"(kDownB));
}

// clang-format on

// The same with e4m3 values in place of bf16: 128 of them a row of a tile, 32 a product, K along the rows.
// Its sums are shorter than fp32 (docs/numerics.md): c is to be added elsewhere after 128 values. Without
// `add` c is only written.
// clang-format off
__device__ inline void multiply_e4m3_async(float (&c)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" PERIGEE_D0 "," PERIGEE_D1 "}, %16, %17, p, 1, 1;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8)
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_e4m3_async(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" PERIGEE_D0 "," PERIGEE_D1 "," PERIGEE_D2 "," PERIGEE_D3 "," PERIGEE_D4 "," PERIGEE_D5 "," PERIGEE_D6 "," PERIGEE_D7 "}, %64, %65, p, 1, 1;\n}"
               : PERIGEE_C8(0), PERIGEE_C8(8), PERIGEE_C8(16), PERIGEE_C8(24), PERIGEE_C8(32), PERIGEE_C8(40), PERIGEE_C8(48), PERIGEE_C8(56)
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

#undef PERIGEE_PRODUCT
#undef PERIGEE_C8
#undef PERIGEE_C4
#undef PERIGEE_D0
#undef PERIGEE_D1
#undef PERIGEE_D2
#undef PERIGEE_D3
#undef PERIGEE_D4
#undef PERIGEE_D5
#undef PERIGEE_D6
#undef PERIGEE_D7
#undef PERIGEE_D8
#undef PERIGEE_D9
#undef PERIGEE_D10
#undef PERIGEE_D11
#undef PERIGEE_D12
#undef PERIGEE_D13
#undef PERIGEE_D14
#undef PERIGEE_D15
// clang-format on

}  // namespace perigee::cuda
