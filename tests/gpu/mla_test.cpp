// mla_project, index_front, mla_query, mla_output on the device: against fp64, against the plain CPU backend,
// and by bits what a row may not depend on.
#include "ops/mla_case.h"

#include "gpu/both_devices.h"
#include "ops/fast_backends.h"

namespace perigee {
namespace {

using test::MlaCase, test::widen;

constexpr LatentFormat kLatentFormats[] = {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4};
constexpr IndexKeyFormat kIndexFormats[] = {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8,
                                            IndexKeyFormat::kMxfp4};

// Runs of rows whose bits must be those of all rows at once: alone, verify widths, odd chunks.
std::vector<MlaCase::Rows> some_rows() {
  std::vector<MlaCase::Rows> out = {{0, 1}, {33, 1}, {34, 1}, {MlaCase::kRows - 1, 1}};
  for (int width = 2; width <= 8; ++width) out.push_back({31, width});
  out.push_back({0, 37});
  out.push_back({37, 33});
  return out;
}

template <typename T>
void expect_rows(const std::vector<T>& part, const std::vector<T>& all, MlaCase::Rows r) {
  const int width = static_cast<int>(all.size()) / MlaCase::kRows;
  EXPECT_TRUE(test::same_bits(part, MlaCase::slice(all, r, width))) << r.count << " rows from " << r.first;
}

// Pages written by some rows against those written by all, position by position.
void expect_records(const std::vector<uint8_t>& part, const std::vector<uint8_t>& all, MlaCase::Rows r,
                    const auto& bytes_of) {
  for (int i = r.first; i < r.first + r.count; ++i) {
    for (const auto& [at, count] : bytes_of(MlaCase::kStart + i)) {
      EXPECT_TRUE(std::equal(all.begin() + at, all.begin() + at + count, part.begin() + at))
          << "position " << MlaCase::kStart + i;
    }
  }
}
using Pieces = std::vector<std::pair<int64_t, int64_t>>;  // offset and bytes
Pieces latent_pieces(LatentFormat format, int position) {
  return {{int64_t{position} * latent_bytes(format), latent_bytes(format)}};
}
Pieces index_pieces(IndexKeyFormat format, int position) {
  const int64_t page = int64_t{position / kPageTokens} * index_page_bytes(format);
  return {{page + index_value_offset(format, position % kPageTokens), index_key_value_bytes(format)},
          {page + index_scale_offset(format, position % kPageTokens), index_key_scale_bytes(format)}};
}

TEST(GpuMlaProject, AccurateAndByRow) {
  const test::MlaProjectCase c;
  const auto all = c.run(test::gpu(), {});
  c.expect_fp64(all);
  cpu::PlainBackend plain(2);
  const auto cpu = c.run(plain, {});
  EXPECT_LT(test::relative_l2(all.kv_a, widen(cpu.kv_a)), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(all.index_weight, widen(cpu.index_weight)), test::kFp32);
  for (const MlaCase::Rows& r : some_rows()) {
    const auto part = c.run(test::gpu(), r);
    expect_rows(part.q_a, all.q_a, r);
    expect_rows(part.kv_a, all.kv_a, r);
    expect_rows(part.gate, all.gate, r);
    expect_rows(part.index_key, all.index_key, r);
    expect_rows(part.index_weight, all.index_weight, r);
  }
}

TEST(GpuIndexFront, AccurateAndByRow) {
  for (IndexKeyFormat format : kIndexFormats) {
    SCOPED_TRACE(index_key_format_name(format));
    const test::IndexFrontCase c(format);
    const auto all = c.run(test::gpu(), {});
    c.expect_fp64(all);
    // cq differs by 3e-4 at most, which puts that part of a step of the query's format (up to a third of a
    // value, mxfp4) of its values on the other side of a boundary: √(3e-4 · ⅓).
    cpu::PlainBackend plain(2);
    const auto cpu = c.run(plain, {});
    EXPECT_LT(test::relative_l2(all.cq, widen(cpu.cq)), test::kBf16SamePlaces);
    EXPECT_LT(test::relative_l2(c.weighted_query(all), c.weighted_query(cpu)), 1e-2);
    EXPECT_LT(test::relative_l2(c.all_keys(all), c.all_keys(cpu)), 5e-4);
    for (const MlaCase::Rows& r : some_rows()) {
      const auto part = c.run(test::gpu(), r);
      expect_rows(part.cq, all.cq, r);
      expect_rows(part.query, all.query, r);
      expect_rows(part.weight, all.weight, r);
      expect_records(part.keys, all.keys, r, [&](int p) { return index_pieces(format, p); });
    }
    // Nothing but the rows' own bytes is written.
    std::vector<uint8_t> rest = all.keys;
    for (int p = MlaCase::kStart; p < MlaCase::kStart + MlaCase::kRows; ++p)
      for (const auto& [at, count] : index_pieces(format, p)) std::fill_n(rest.begin() + at, count, 0xFF);
    EXPECT_EQ(std::count(rest.begin(), rest.end(), 0xFF), static_cast<int64_t>(rest.size()));
  }
}

TEST(GpuMlaQuery, AccurateAndByRow) {
  for (LatentFormat format : kLatentFormats) {
    SCOPED_TRACE(latent_format_name(format));
    const test::MlaQueryCase c(format);
    const auto all = c.run(test::gpu(), {});
    c.expect_fp64(all);
    cpu::PlainBackend plain(2);
    const auto cpu = c.run(plain, {});
    EXPECT_LT(test::relative_l2(all.query, widen(cpu.query)), 5e-4);
    EXPECT_LT(test::relative_l2(c.latents(all), c.latents(cpu)), 2e-3);
    for (const MlaCase::Rows& r : some_rows()) {
      const auto part = c.run(test::gpu(), r);
      expect_rows(part.query, all.query, r);
      expect_records(part.latents, all.latents, r, [&](int p) { return latent_pieces(format, p); });
    }
    std::vector<uint8_t> rest = all.latents;
    for (int p = MlaCase::kStart; p < MlaCase::kStart + MlaCase::kRows; ++p)
      for (const auto& [at, count] : latent_pieces(format, p)) std::fill_n(rest.begin() + at, count, 0xFF);
    EXPECT_EQ(std::count(rest.begin(), rest.end(), 0xFF), static_cast<int64_t>(rest.size()));
  }
}

TEST(GpuMlaOutput, AccurateAndByRow) {
  for (bool gated : {false, true}) {
    for (int lanes : {1, 2, 4}) {
      const test::MlaOutputCase c(gated, lanes);
      const std::vector<float> all = c.run(test::gpu(), {});
      c.expect_fp64(all);
      cpu::PlainBackend plain(2);
      EXPECT_LT(test::relative_l2(all, widen(c.run(plain, {}))), test::kBf16SamePlaces);
      for (const MlaCase::Rows& r : some_rows()) {
        std::vector<float> want;
        for (int l = 0; l < lanes; ++l) {
          const std::vector<float> lane(all.begin() + int64_t{l} * MlaCase::kRows * MlaCase::kHidden,
                                        all.begin() + int64_t{l + 1} * MlaCase::kRows * MlaCase::kHidden);
          const std::vector<float> rows = MlaCase::slice(lane, r, MlaCase::kHidden);
          want.insert(want.end(), rows.begin(), rows.end());
        }
        EXPECT_TRUE(test::same_bits(c.run(test::gpu(), r), want)) << r.count << " rows from " << r.first;
      }
    }
  }
}

}  // namespace
}  // namespace perigee
