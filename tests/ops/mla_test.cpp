// mla_project, index_front, mla_query, mla_output: the products around attention, and what they put into the
// cache, against fp64.
#include "ops/mla_case.h"

namespace perigee {
namespace {

TEST(MlaProject, AgainstFp64) {
  const test::MlaProjectCase c;
  cpu::PlainBackend backend(2);
  c.expect_fp64(c.run(backend, {}));
}

TEST(IndexFront, AgainstFp64) {
  for (IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
    SCOPED_TRACE(index_key_format_name(format));
    const test::IndexFrontCase c(format);
    cpu::PlainBackend backend(2);
    c.expect_fp64(c.run(backend, {}));
  }
}

TEST(MlaQuery, AgainstFp64) {
  for (LatentFormat format : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    SCOPED_TRACE(latent_format_name(format));
    const test::MlaQueryCase c(format);
    cpu::PlainBackend backend(2);
    c.expect_fp64(c.run(backend, {}));
  }
}

TEST(MlaOutput, AgainstFp64) {
  for (bool gated : {false, true}) {
    for (int lanes : {1, 2, 4}) {
      const test::MlaOutputCase c(gated, lanes);
      cpu::PlainBackend backend(2);
      c.expect_fp64(c.run(backend, {}));
    }
  }
}

}  // namespace
}  // namespace perigee
