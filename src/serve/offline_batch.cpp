#include "serve/offline_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "serve/answer_file.h"
#include "serve/api_error.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

constexpr size_t kLongestLine = size_t{64} << 20;  // bytes
constexpr std::string_view kUrls[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses"};

// One line of the requests, read: what to ask, or why it is no request.
struct Line {
  int64_t number = 0;
  std::string id;                        // of its answer
  std::optional<std::string> custom_id;  // as far as there is one
  std::string url, body, fault;
};

std::string text_field(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  if (!value) fail(ErrorCode::kBadRequest, "{} is missing; give a string", key);
  if (!value->is_string() || value->get_string().empty())
    fail(ErrorCode::kBadRequest, "{} is {}; give a string that is not empty", key,
         json_text(*value, JsonSpacing::kCompact).substr(0, 80));
  return std::string(value->get_string());
}

void read_line(std::string_view text, Line& line) {
  if (text.size() > kLongestLine)
    fail(ErrorCode::kBadRequest, "the line has {} bytes; at most {} are taken", text.size(), kLongestLine);
  json::parse_options options;
  options.max_depth = kJsonDepth + 1;
  json::error_code error;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), error, {}, options);
  if (error) fail(ErrorCode::kBadRequest, "the line is not JSON ({}); give one object", error.message());
  if (!value.is_object()) fail(ErrorCode::kBadRequest, "the line is not a JSON object; give one");
  const json::object& object = value.get_object();
  line.custom_id = text_field(object, "custom_id");
  if (const json::value* method = object.if_contains("method"); method && *method != "POST")
    fail(ErrorCode::kBadRequest, "method is {}; expected \"POST\"",
         json_text(*method, JsonSpacing::kCompact).substr(0, 80));
  line.url = text_field(object, "url");
  if (std::find(std::begin(kUrls), std::end(kUrls), line.url) == std::end(kUrls))
    fail(ErrorCode::kBadRequest, "url is \"{}\"; expected one of {}", line.url.substr(0, 80),
         fmt::join(kUrls, ", "));
  const json::value* body = object.if_contains("body");
  if (!body || !body->is_object()) fail(ErrorCode::kBadRequest, "body is not an object; give the request's");
  if (const json::value* stream = body->get_object().if_contains("stream"); stream && *stream == true)
    fail(ErrorCode::kBadRequest, "body.stream is true; a batch holds whole answers, leave it out");
  line.body = json_text(*body, JsonSpacing::kCompact);
}

// Takes answers from any thread to the file, and counts them.
class Answers {
 public:
  Answers(const OfflineBatchOptions& options, AnswerFile& file, OfflineBatchReport& report)
      : options_(options), file_(file), report_(report) {}

  // Waits for one of the places; throws what has gone wrong with the file.
  void begin() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return under_way_ < options_.in_flight || error_; });
    if (error_) throw Error(*error_);
    ++under_way_;
  }
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return under_way_ == 0 || error_; });
    if (error_) throw Error(*error_);
  }
  // Nothing is written from now on: what ends afterwards was not answered.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

  void reply(const Line& line, int status, const std::string& warning, const std::string& body) {
    std::string response =
        fmt::format("{{\"status_code\":{},\"request_id\":{},", status, json_string(line.id));
    if (!warning.empty()) response += fmt::format("\"warning\":{},", json_string(warning));
    write(line, response + "\"body\":" + body + "}", "null", status == 200);
  }
  void fault(const Line& line) {
    write(line, "null",
          fmt::format("{{\"code\":\"invalid_line\",\"message\":{}}}",
                      json_string(fmt::format("line {}: {}", line.number, line.fault))),
          false);
  }

 private:
  void write(const Line& line, const std::string& response, const std::string& error, bool answered) {
    const std::lock_guard lock(mutex_);
    if (closed_ || error_) return;
    try {
      file_.append(fmt::format("{{\"id\":{},\"custom_id\":{},\"response\":{},\"error\":{}}}",
                               json_string(line.id), line.custom_id ? json_string(*line.custom_id) : "null",
                               response, error));
      ++(answered ? report_.answered : report_.failed);
      options_.on_progress(report_.kept + report_.answered + report_.failed, report_.requests);
    } catch (const Error& why) {
      error_ = why;
    }
    --under_way_;
    ready_.notify_all();
  }

  const OfflineBatchOptions& options_;
  AnswerFile& file_;
  OfflineBatchReport& report_;
  std::mutex mutex_;
  std::condition_variable ready_;
  int64_t under_way_ = 0;
  std::optional<Error> error_;
  bool closed_ = false;
};

// Where the API writes the answer to one line.
class LineReply : public HttpReply {
 public:
  LineReply(std::shared_ptr<Answers> answers, Line line)
      : answers_(std::move(answers)), line_(std::move(line)) {}
  ~LineReply() override {
    if (!sent_)
      answers_->reply(line_, 500, "", error_body(500, "the request was let go of without an answer"));
  }

  void send(int status, Headers headers, std::string body) override {
    sent_ = true;
    std::string warning;
    for (const auto& [name, value] : headers)
      if (name == "X-Perigee-Warning") warning = value;
    answers_->reply(line_, status, warning, body);
  }
  // Streams were refused with their line.
  void begin(int, Headers) override {}
  void write(std::string) override {}
  void end() override {}
  void abort() override {}
  size_t unsent() const override { return 0; }
  void on_gone(std::function<void()>) override {}
  void on_silence(std::function<void()>) override {}

 private:
  std::shared_ptr<Answers> answers_;
  Line line_;
  bool sent_ = false;
};

bool blank(std::string_view line) { return strip(line).empty(); }

std::ifstream open_requests(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    fail(ErrorCode::kBadFile, "{}: {}; give a file with one request a line", path,
         error ? error.message() : "not a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::kBadFile, "{}: cannot be read: {}", path, std::strerror(errno));
  return in;
}

// How many requests there are. Every answer of `file` must be to one of them.
int64_t count_requests(const std::string& path, const AnswerFile& file) {
  std::ifstream in = open_requests(path);
  int64_t number = 0, requests = 0;
  size_t answered = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (blank(line)) continue;
    ++requests;
    answered += file.has(number, line);
  }
  if (answered != file.answers())
    fail(ErrorCode::kBadFile,
         "{}: it has answers to requests that {} lacks; give another path for the answers", file.path(),
         path);
  return requests;
}

}  // namespace

OfflineBatchReport run_offline_batch(Api& api, const OfflineBatchOptions& options) {
  OfflineBatchReport report;
  std::ifstream in = open_requests(options.requests);
  AnswerFile file(options.answers, options.fingerprint);
  report.requests = count_requests(options.requests, file);
  report.kept = static_cast<int64_t>(file.answers());
  options.on_progress(report.kept, report.requests);
  const auto answers = std::make_shared<Answers>(options, file, report);
  struct Close {
    Answers& answers;
    ~Close() { answers.close(); }
  } close{*answers};  // before the file goes, also by an error: replies may outlive both

  std::map<std::string, int64_t> first_with;  // line by custom_id
  int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (blank(text)) continue;
    Line line{.number = number, .id = AnswerFile::id_of(number, text)};
    try {
      read_line(text, line);
      const auto [first, unique] = first_with.emplace(*line.custom_id, number);
      if (!unique)
        fail(ErrorCode::kBadRequest, "custom_id \"{}\" is that of line {} too; give each its own",
             line.custom_id->substr(0, 80), first->second);
    } catch (const Error& error) {
      line.fault = error.what();
    }
    if (file.has(number, text)) continue;
    answers->begin();
    if (!line.fault.empty()) {
      answers->fault(line);
      continue;
    }
    auto request = std::make_shared<HttpRequest>();
    request->id = line.id;
    request->method = "POST";
    request->path = line.url;
    request->body = std::exchange(line.body, {});
    api.handle(std::move(request), std::make_shared<LineReply>(answers, std::move(line)));
  }
  answers->wait_for_all();
  file.flush();
  return report;
}

}  // namespace perigee::serve
