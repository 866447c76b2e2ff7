// scripted_server PORT TOKENS MICROSECONDS: the API over an engine that writes TOKENS tokens, one every so
// many microseconds, to every request at once. Ends with its standard input.
#include <cstdio>
#include <cstdlib>

#include "test_api.h"

using namespace perigee;
using namespace perigee::serve;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const ServedModel model = test_model();
  const std::vector<int32_t> word = model.tokenizer.encode("on and on ");
  std::vector<int32_t> ids;
  while (static_cast<int>(ids.size()) < std::atoi(argv[2])) ids.push_back(word[ids.size() % word.size()]);
  TestApi api([&](const Request&, int) { return ScriptedEngine::Answer{ids, FinishReason::kLength, {}}; }, {},
              1, std::chrono::microseconds(std::atoi(argv[3])), model, std::atoi(argv[1]));
  std::printf("%d\n", api.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
