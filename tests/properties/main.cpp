// Runs the property tests. --break-rule=NAME breaks one rule of the numerics contract and runs its minimal
// case alone, which must then fail.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "cache/break_reuse.h"
#include "ops/break_rule.h"
#include "properties/options.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::map<perigee::Rule, const char*> minimal = {
      {perigee::Rule::kRow, "*BatchMates*/k31"},
      {perigee::Rule::kSegment, "*TokenByToken*/kimi_linear"},
      {perigee::Rule::kLane, "Lanes.TheTree*"},
      {perigee::Rule::kKey, "*TokenByToken*/k31"},
      {perigee::Rule::kPosition, "*AnySplit*/kimi_linear"},
      {perigee::Rule::kSelection, "Selection.Ties*"},
      {perigee::Rule::kStoredForm, "*AnySplit*/kimi_k3"},
      {perigee::Rule::kRandom, "Sampling.*"}};
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const std::string prefix = "--break-rule=";
    const std::string kernels = "--cpu-kernels=", device = "--device=", overload = "--overload=";
    if (arg == "--long") {
      perigee::test::g_long = true;
      continue;
    }
    if (arg.starts_with(device)) {
      perigee::test::g_device = arg.substr(device.size());
      continue;
    }
    if (arg.starts_with(kernels)) {
      perigee::test::g_cpu_kernels = arg.substr(kernels.size());
      continue;
    }
    if (arg == prefix + "reuse") {  // no rule of the numerics: the cache's
      perigee::g_reuse_broken = true;
      testing::GTEST_FLAG(filter) = "PrefixReuse.AnExactRepeat/k31";
      continue;
    }
    if (arg.starts_with(overload)) {
      perigee::test::g_overload_seconds = std::stod(arg.substr(overload.size()));
      testing::GTEST_FLAG(filter) = "Overload.*";
      continue;
    }
    const auto rule = arg.starts_with(prefix) ? perigee::parse_rule(arg.substr(prefix.size())) : std::nullopt;
    if (!rule) {
      std::fprintf(stderr,
                   "unknown argument '%s'; use "
                   "--device=cpu|cuda, --cpu-kernels=NAME, --long, --overload=SECONDS or "
                   "--break-rule=row|segment|lane|key|position|selection|stored-form|random|reuse\n",
                   arg.c_str());
      return 2;
    }
    perigee::g_broken_rule = *rule;
    perigee::test::g_cpu_kernels = "plain";
    if (const auto it = minimal.find(*rule); it != minimal.end()) testing::GTEST_FLAG(filter) = it->second;
  }
  return RUN_ALL_TESTS();
}
