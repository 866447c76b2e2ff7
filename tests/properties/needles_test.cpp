// T3 of reference/field-reports.md B0, the fluent-but-wrong detector: answers of the shipped model that can
// come only from the KDA states, and answers that can come only from keys that the index selects, asked again
// after a hit, after rows and states came back from host memory, and after they came back from a file.
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <optional>

#include "engine/generate.h"
#include "properties/options.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace perigee::test {
namespace {

const std::string kModel = "models/tiny-k31";

struct Needle {
  std::vector<int32_t> prompt;
  std::string answer;
};

class Needles : public testing::Test {
 protected:
  Needles()
      : tokenizer_(Tokenizer::load(kModel)),
        format_(make_chat_format(tokenizer_)),
        runner_(load_config(kModel), load_weights(kModel, load_config(kModel), {.show_progress = false}),
                on_device({.threads = 2, .cache_rows = 200, .sequences = 2})) {}

  // The suite's question with the shortest document.
  Needle shortest(const std::string& suite) const {
    std::ifstream in(kModel + "/eval/" + suite + ".jsonl");
    std::string document, text;
    boost::json::object item;
    for (std::string line; std::getline(in, line);) {
      const boost::json::object o = boost::json::parse(line).as_object();
      const std::string name(o.at("document").as_string());
      if (o.contains("text")) {
        const std::string it(o.at("text").as_string());
        if (!text.empty() && it.size() >= text.size()) continue;
        text = it;
        document = name;
        item.clear();
      } else if (name == document && item.empty()) {
        item = o;
      }
    }
    boost::json::array messages = item.at("messages").as_array();
    boost::json::object& first = messages[0].as_object();
    first["content"] = text + "\n" + std::string(first.at("content").as_string());
    return {.prompt = tokenizer_.encode(format_->render(messages, {})),
            .answer = std::string(item.at("answer").at("text").as_string())};
  }

  Generation ask(const Needle& needle, PrefixTree& tree) {
    return generate(runner_,
                    {{.prompt = needle.prompt,
                      .sampling = {.temperature = 0},
                      .max_tokens = 110,
                      .stop_ids = format_->stop_ids()}},
                    {.scheduler = {.max_num_seqs = 1, .max_num_batched_tokens = 512, .wait_for_copies = true},
                     .prefixes = &tree})[0];
  }

  std::string content(const Generation& g) const {
    const auto parser = format_->parser(true);
    for (const GeneratedToken& t : g.tokens) parser->push(t.id);
    return parser->finish().content;
  }

  // `control` takes the one way to the answer away.
  void expect_found(const Needle& needle, const StepControls& control) {
    const int64_t row_bytes = runner_.pool().plan().row_bytes();
    RowStoreOptions memory{.memory_bytes = runner_.pool().rows() * row_bytes};
    RowStoreOptions file{.file = testing::TempDir() + "needles-" + std::to_string(getpid()),
                         .file_bytes = memory.memory_bytes};
    std::optional<Generation> first;
    for (const RowStoreOptions& tiers : {memory, file}) {
      RowStore store(runner_.pool(), tiers);
      PrefixTree tree(runner_.pool(), {.checkpoint_share = 0.5, .debug = true}, &store);
      const auto expect_same = [&](const Generation& g, const char* when) {
        ASSERT_EQ(g.tokens.size(), first->tokens.size()) << when;
        for (size_t i = 0; i < g.tokens.size(); ++i) {
          EXPECT_EQ(g.tokens[i].id, first->tokens[i].id) << when;
          EXPECT_EQ(std::memcmp(&g.tokens[i].logprob, &first->tokens[i].logprob, sizeof(float)), 0) << when;
        }
      };
      const Generation whole = ask(needle, tree);
      EXPECT_EQ(whole.cached_tokens, 0);
      if (!first) first = whole;
      EXPECT_EQ(content(whole), needle.answer);
      expect_same(whole, "computed anew");
      const Generation hit = ask(needle, tree);
      EXPECT_GE(hit.cached_tokens, std::ssize(needle.prompt) - kChunk);
      expect_same(hit, "after a hit");

      tree.wait();
      EXPECT_TRUE(tree.make_room(runner_.pool().rows()));
      const PrefixHit gone = tree.match({}, needle.prompt);
      EXPECT_EQ(gone.tokens(), 0);
      EXPECT_GE(gone.stored, std::ssize(needle.prompt) - kChunk);
      const Generation back = ask(needle, tree);
      EXPECT_GE(back.cached_tokens, std::ssize(needle.prompt) - kChunk);
      expect_same(back, tiers.file.empty() ? "back from memory" : "back from a file");

      // The same hit with that way closed.
      runner_.set_controls(control);
      const Generation closed = ask(needle, tree);
      runner_.set_controls({});
      EXPECT_GE(closed.cached_tokens, std::ssize(needle.prompt) - kChunk);
      EXPECT_NE(content(closed), needle.answer);
    }
  }

  Tokenizer tokenizer_;
  std::unique_ptr<ChatFormat> format_;
  Runner runner_;
};

TEST_F(Needles, T3_InTheStates) { expect_found(shortest("state"), {.poison_state = true}); }
TEST_F(Needles, T3_AmongSelectedKeys) { expect_found(shortest("recall"), {.random_index = true}); }

}  // namespace
}  // namespace perigee::test
