// Event logs of an engine: the same steps and bits in a replay, constraints kept, damage named.
#include "engine/event_log.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <sstream>

#include "engine/engine_case.h"

namespace perigee {
namespace {

using test::kVocab, test::Listener, test::request;

using EventLogTest = test::EngineTest;

// The log of two requests, of which one is cancelled.
std::string recorded(Runner& runner, bool look_ahead = false) {
  std::string lines;
  {
    EventLog log([&](const std::string& line) { lines += line + "\n"; }, {{"about", "a test"}});
    PrefixTree tree(runner.pool());
    Engine engine(runner, &tree,
                  {.scheduler = {.max_num_seqs = 2, .max_num_batched_tokens = 24, .look_ahead = look_ahead},
                   .log = &log});
    Request r = request(50, 3, 16);
    r.n = 2;
    if (!look_ahead) {
      r.logits.logit_bias = {{7, 0.1f}};
      r.logits.bad_words = {{1, 2}};
    }
    r.salt = "s";
    const RequestId id = engine.submit(r);
    engine.step();
    engine.submit(request(20, 4, 9));
    for (int i = 0; i < 5; ++i) engine.step();
    engine.cancel(id, 1);
    EXPECT_FALSE(engine.reset_prefix_cache());  // not while requests are here
    while (engine.step()) {
    }
    EXPECT_TRUE(engine.reset_prefix_cache());
    engine.submit(r);  // computes its prompt anew
    while (engine.step()) {
    }
  }
  return lines;
}

ReplayReport replayed(Runner& runner, const std::string& lines, const ReadConstraint& read = nullptr,
                      bool look_ahead = false) {
  std::istringstream in(lines);
  const boost::json::object header = read_log_header(in, "log");
  PrefixTree tree(runner.pool());
  std::optional<Engine> engine;
  const auto make_engine = [&](EventLog& log) -> Engine& {
    engine.emplace(
        runner, &tree,
        EngineOptions{
            .scheduler = {.max_num_seqs = 2, .max_num_batched_tokens = 24, .look_ahead = look_ahead},
            .log = &log});
    return *engine;
  };
  return replay(in, "log", header, {.make_engine = make_engine, .read_constraint = read});
}

TEST_F(EventLogTest, AReplayHasTheSameStepsAndBits) {
  const std::string log = recorded(runner_);
  const ReplayReport report = replayed(runner_, log);
  EXPECT_EQ(report.difference, "");
  EXPECT_EQ(report.requests, 3);
  EXPECT_GT(report.steps, 5);
  // On other threads and kernels too; another model's bits are noticed.
  Runner plain = test::small_runner("k31", {.threads = 1, .cpu_kernels = "plain"});
  EXPECT_EQ(replayed(plain, log).difference, "");
  const ModelConfig config = test::small_config("k31");
  Runner other(config,
               load_weights("", config, {.format = LoadFormat::kDummy, .seed = 8, .show_progress = false}),
               {.threads = 2});
  EXPECT_NE(replayed(other, log).difference, "");
}

TEST_F(EventLogTest, AReplayLooksAheadAsTheRunDid) {
  const std::string log = recorded(runner_, true);
  const ReplayReport report = replayed(runner_, log, nullptr, true);
  EXPECT_EQ(report.difference, "");
  EXPECT_FALSE(report.cut);
  EXPECT_GT(report.steps, 10);
}

// Even tokens only, until an answer has `left` of them.
class EvenTokens : public TokenConstraint {
 public:
  explicit EvenTokens(int left) : left_(left) {
    for (int32_t t = 0; t < kVocab; t += 2) allowed_.push_back(t);
  }
  const std::vector<int32_t>& allowed() const override { return left_ > 0 ? allowed_ : any_; }
  std::shared_ptr<const TokenConstraint> after(int32_t) const override {
    return std::make_shared<EvenTokens>(left_ - 1);
  }
  boost::json::object record() const override { return {{"even", left_}}; }

 private:
  int left_;
  std::vector<int32_t> allowed_, any_;
};

TEST_F(EventLogTest, ALogKeepsConstraints) {
  std::string lines;
  {
    EventLog log([&](const std::string& line) { lines += line + "\n"; }, {});
    PrefixTree tree(runner_.pool());
    Engine engine(runner_, &tree,
                  {.scheduler = {.max_num_seqs = 2, .max_num_batched_tokens = 24}, .log = &log});
    Request r = request(30, 3, 8);
    r.logits.constraint = std::make_shared<EvenTokens>(5);
    const RequestId id = engine.submit(r);
    Listener heard;
    heard.run(engine);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(heard[id].tokens[i].id % 2, 0);
  }
  const auto even = [](const boost::json::object& record) {
    return std::make_shared<EvenTokens>(static_cast<int>(record.at("even").as_int64()));
  };
  EXPECT_EQ(replayed(runner_, lines, even).difference, "");
  // Another constraint is another answer.
  const auto fewer = [](const boost::json::object&) { return std::make_shared<EvenTokens>(0); };
  EXPECT_NE(replayed(runner_, lines, fewer).difference, "");
  try {
    replayed(runner_, lines);
    ADD_FAILURE() << "a constraint was left out";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("the model's vocabulary"), std::string::npos) << e.what();
  }
}

TEST_F(EventLogTest, ADamagedLogIsNamed) {
  const std::string log = recorded(runner_);
  EXPECT_FALSE(replayed(runner_, log).cut);
  EXPECT_TRUE(replayed(runner_, log.substr(0, log.size() - 9)).cut);
  EXPECT_TRUE(replayed(runner_, log.substr(0, log.find('\n') + 1)).cut);
  const auto error_of = [&](const std::string& lines) -> std::string {
    try {
      replayed(runner_, lines);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_NE(error_of("{}\n").find("not the header"), std::string::npos);
  EXPECT_NE(error_of("").find("not the header"), std::string::npos);
  EXPECT_NE(error_of(log + "{\"what\":1}\n").find("no request"), std::string::npos);
  EXPECT_NE(error_of(log + "{\"end\":1}\n").find("there were 1 steps"), std::string::npos);
  EXPECT_NE(error_of("{\"perigee_log\":2}\n").find("version 2"), std::string::npos);
  EXPECT_NE(error_of(log + "nonsense\n").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of(log + "{\"submit\":9,\"request\":{}}\n").find("no \"prompt\""), std::string::npos);
}

}  // namespace
}  // namespace perigee
