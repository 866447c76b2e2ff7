#include "serve/offline_batch.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/temporary_folder.h"
#include "serve/answer_file.h"
#include "test_api.h"

namespace perigee::serve {
namespace {

namespace json = boost::json;

constexpr const char* kFingerprint = "perigee-0123456789abcdef";

std::string request(const std::string& id, const std::string& body = R"({"prompt":"Hi"})",
                    const std::string& url = "/v1/completions") {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":")" + url + R"(","body":)" + body + "}\n";
}

ScriptedEngine::Answer hello(const Request&, int) { return {answer_ids(test_model(), {"Hello"})}; }

class OfflineBatch : public testing::Test {
 protected:
  // Answers the requests with an engine of its own, as a process of its own would.
  OfflineBatchReport run(const std::string& requests, ScriptedEngine::Script script = hello) {
    write(in_, requests);
    ScriptedEngine engine(std::move(script));
    Api api(test_model(), engine, {.access_log = false});
    const auto end = [&] {
      engine.stop();
      api.stop();
      asked_ = engine.seen().size();
    };
    try {
      const OfflineBatchReport report = run_offline_batch(
          api, {.requests = in_, .answers = out_, .fingerprint = kFingerprint, .in_flight = 4});
      end();
      return report;
    } catch (...) {
      end();
      throw;
    }
  }
  std::string refusal(const std::string& requests) {
    try {
      run(requests);
      return "none";
    } catch (const Error& error) {
      return error.what();
    }
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string text() const {
    std::stringstream out;
    out << std::ifstream(out_, std::ios::binary).rdbuf();
    return out.str();
  }
  // By the number of the request's line.
  std::map<int, json::object> answers() const {
    std::map<int, json::object> found;
    std::ifstream in(out_);
    for (std::string line; std::getline(in, line);) {
      json::object answer = json::parse(line).as_object();
      const std::string id(answer.at("id").as_string());
      EXPECT_TRUE(
          found.emplace(std::stoi(id.substr(id.find_first_of("0123456789"))), std::move(answer)).second);
    }
    return found;
  }

  TemporaryFolder folder_;
  std::string in_ = folder_ / "in.jsonl", out_ = folder_ / "out.jsonl";
  size_t asked_ = 0;  // of the engine, by the last run
};

TEST_F(OfflineBatch, AnswersStandInOpenAIsForm) {
  const OfflineBatchReport report = run(
      request("text") + request("chat", R"({"messages":[{"role":"user","content":"Hi"}],"mystery":1,"n":2})",
                                "/v1/chat/completions"));
  EXPECT_EQ(report.requests, 2);
  EXPECT_EQ(report.answered, 2);
  const auto got = answers();
  ASSERT_EQ(got.size(), 2u);
  for (const auto& [line, answer] : got) {
    EXPECT_TRUE(answer.at("error").is_null());
    EXPECT_EQ(answer.at("response").at("status_code"), 200);
  }
  EXPECT_EQ(got.at(1).at("custom_id"), "text");
  EXPECT_EQ(got.at(1).at("response").at("body").at("choices").at(0).at("text"), "Hello");
  EXPECT_EQ(got.at(2).at("custom_id"), "chat");
  EXPECT_EQ(got.at(2).at("response").at("body").at("choices").as_array().size(), 2u);
  EXPECT_NE(std::string(got.at(2).at("response").at("warning").as_string()).find("mystery"),
            std::string::npos);
  EXPECT_FALSE(got.at(1).at("response").as_object().contains("warning"));
}

TEST_F(OfflineBatch, ABadLineIsThatLinesError) {
  const std::string deep = std::string(70, '[') + std::string(70, ']');
  const std::pair<std::string, std::string> bad[] = {
      {"hello\n", "not JSON"},
      {"[]\n", "not a JSON object"},
      {"{\"custom_id\":\"x\xff\"}\n", "not JSON"},
      {"{\"body\":{}}\n", "custom_id is missing"},
      {"{\"custom_id\":7,\"body\":{}}\n", "custom_id is 7"},
      {request("url", "{}", "/v1/embeddings"), "url is \"/v1/embeddings\""},
      {R"({"custom_id":"get","method":"GET","url":"/v1/completions","body":{}})"
       "\n",
       "method is \"GET\""},
      {R"({"custom_id":"none","url":"/v1/completions"})"
       "\n",
       "body is not an object"},
      {request("list", "[]"), "body is not an object"},
      {request("stream", R"({"prompt":"Hi","stream":true})"), "body.stream is true"},
      {request("deep", R"({"prompt":)" + deep + "}"), "not JSON"},
      {request("good"), "custom_id \"good\" is that of line 1 too"}};
  std::string all = request("good") + "\n";
  for (const auto& [line, why] : bad) all += line;
  const OfflineBatchReport report = run(all + request("last"));
  EXPECT_EQ(report.answered, 2);
  EXPECT_EQ(report.failed, static_cast<int64_t>(std::size(bad)));
  const auto got = answers();
  int number = 2;
  for (const auto& [line, why] : bad) {
    const json::object& answer = got.at(++number);
    EXPECT_TRUE(answer.at("response").is_null());
    const std::string message(answer.at("error").at("message").as_string());
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_NE(message.find("line " + std::to_string(number) + ": "), std::string::npos) << message;
  }
  EXPECT_EQ(got.at(8).at("custom_id"), "url");  // said as far as it is known
  EXPECT_TRUE(got.at(3).at("custom_id").is_null());
}

TEST_F(OfflineBatch, ARefusedRequestHasItsStatus) {
  const auto script = [](const Request& r, int) {
    if (r.max_tokens == 7) fail(ErrorCode::kBadRequest, "seven is refused");
    if (r.max_tokens == 8) return ScriptedEngine::Answer{{}, FinishReason::kError, "a broken step"};
    return hello(r, 0);
  };
  run(request("a", R"({"prompt":"Hi","max_tokens":7})") + request("b", R"({"prompt":"Hi","max_tokens":8})") +
          request("c", R"({"prompt":""})") + request("d"),
      script);
  const auto got = answers();
  const auto status = [&](int line) { return got.at(line).at("response").at("status_code").as_int64(); };
  EXPECT_EQ(status(1), 400);
  EXPECT_EQ(got.at(1).at("response").at("body").at("error").at("message"), "seven is refused");
  EXPECT_EQ(status(2), 500);
  EXPECT_EQ(status(3), 400);
  EXPECT_EQ(status(4), 200);
}

// A kill may leave the file at any byte: cut there, the next run asks exactly what is missing.
TEST_F(OfflineBatch, GoesOnFromEveryByte) {
  std::string all;
  for (int i = 0; i < 6; ++i) all += i == 2 ? "no request\n" : request("r" + std::to_string(i));
  run(all);
  EXPECT_EQ(asked_, 5u);
  const std::string whole = text();
  for (size_t cut = 0; cut <= whole.size(); cut += cut < 30 || whole.size() - cut < 30 ? 1 : 37) {
    write(out_, whole.substr(0, cut));
    const size_t kept = static_cast<size_t>(std::count(whole.begin(), whole.begin() + cut, '\n'));
    const OfflineBatchReport report = run(all);
    EXPECT_EQ(report.kept, static_cast<int64_t>(kept));
    EXPECT_EQ(report.answered + report.failed, static_cast<int64_t>(6 - kept));
    EXPECT_LE(asked_, 6 - kept);
    EXPECT_EQ(answers().size(), 6u);
    const size_t kept_bytes = cut == 0 ? 0 : whole.rfind('\n', cut - 1) + 1;
    EXPECT_EQ(text().substr(0, kept_bytes), whole.substr(0, kept_bytes));
  }
  write(out_, whole);
  EXPECT_EQ(run(all).kept, 6);
  EXPECT_EQ(asked_, 0u);
  EXPECT_EQ(text(), whole);
}

// Answers that belong to something else are left as they are.
TEST_F(OfflineBatch, RefusesOtherAnswers) {
  run(request("a") + request("b"));
  const std::string whole = text();
  EXPECT_NE(refusal(request("a") + request("c")).find("to another text"), std::string::npos);
  EXPECT_EQ(asked_, 0u);
  EXPECT_NE(refusal(request("a")).find("requests that"), std::string::npos);
  EXPECT_EQ(text(), whole);

  std::string other = whole;
  other.replace(other.find(kFingerprint), std::string(kFingerprint).size(), "perigee-ffffffffffffffff");
  write(out_, other);
  EXPECT_NE(refusal(request("a") + request("b")).find("computed under perigee-ffffffffffffffff"),
            std::string::npos);
  EXPECT_EQ(text(), other);

  for (const std::string& strange : {std::string("a diary"), std::string("a\ndiary\n"), std::string("{}\n"),
                                     std::string("{\"id\":\"batch_req_\"}\n"), whole + whole}) {
    write(out_, strange);
    EXPECT_NE(refusal(request("a") + request("b")).find("give another path"), std::string::npos) << strange;
    EXPECT_EQ(text(), strange);
  }
}

TEST_F(OfflineBatch, OneProcessWritesAtATime) {
  const AnswerFile held(out_, kFingerprint);
  EXPECT_NE(refusal(request("a")).find("another process is writing it"), std::string::npos);
}

TEST_F(OfflineBatch, GoesOnAfterAFullDisk) {
  const std::string all = request("a") + request("b") + request("c");
  run(all);
  const std::string whole = text();
  std::filesystem::remove(out_);
  const size_t first = whole.find('\n') + 1;
  rlimit unlimited = {};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little = {.rlim_cur = first + first / 2, .rlim_max = unlimited.rlim_max};
  setrlimit(RLIMIT_FSIZE, &little);
  const std::string why = refusal(all);
  setrlimit(RLIMIT_FSIZE, &unlimited);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(why.find("cannot be written: File too large"), std::string::npos) << why;
  EXPECT_EQ(answers().size(), 1u);
  EXPECT_EQ(run(all).kept, 1);
  EXPECT_EQ(answers().size(), 3u);
}

TEST_F(OfflineBatch, TakesOnlyFiles) {
  for (const std::string& path : {folder_ / "no/such/folder", std::string("/dev/null"), folder_.path()}) {
    out_ = path;
    EXPECT_NE(refusal(request("a")).find(path + ": "), std::string::npos);
  }
}

}  // namespace
}  // namespace perigee::serve
