#include "serve/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cctype>
#include <ctime>
#include <random>

#include "serve/http_text.h"

namespace perigee::serve {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kPipelinedBytes = 64 << 10;  // of requests that wait for their turn
constexpr size_t kGather = 16;                // strings in one write
constexpr int kLingerSeconds = 2;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string date_header() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[40];
  return std::string(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc));
}

bool plain_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == ':';
  });
}

std::string random_id() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

}  // namespace

// Hands every call to the connection on the I/O thread.
class Reply : public HttpReply {
 public:
  Reply(std::shared_ptr<Connection> connection, uint64_t number)
      : connection_(std::move(connection)), number_(number) {}
  ~Reply() override {
    post([](Connection& c, uint64_t number) { c.reply_dropped(number); });
  }

  void send(int status, Headers headers, std::string body) override {
    post([status, headers = std::move(headers), body = std::move(body)](Connection& c, uint64_t number) {
      c.reply_begin(number, status, headers, body);
    });
  }
  void begin(int status, Headers headers) override {
    post([status, headers = std::move(headers)](Connection& c, uint64_t number) {
      c.reply_begin(number, status, headers, std::nullopt);
    });
  }
  void write(std::string bytes) override {
    if (bytes.empty()) return;
    connection_->unsent_ += bytes.size();
    post([bytes = std::move(bytes)](Connection& c, uint64_t number) {
      c.unsent_ -= bytes.size();
      c.reply_write(number, bytes);
    });
  }
  void end() override {
    post([](Connection& c, uint64_t number) { c.reply_end(number); });
  }
  void abort() override {
    post([](Connection& c, uint64_t number) {
      if (number == c.number_) c.client_gone();
    });
  }
  size_t unsent() const override { return connection_->unsent_; }
  void on_gone(std::function<void()> callback) override {
    post([callback = std::move(callback)](Connection& c, uint64_t number) {
      if (number != c.number_ || c.complete_) return;
      if (c.gone_)
        callback();
      else
        c.on_gone_ = callback;
    });
  }
  void on_silence(std::function<void()> callback) override {
    post([callback = std::move(callback)](Connection& c, uint64_t number) {
      if (number == c.number_ && !c.complete_ && !c.gone_) c.on_silence_ = callback;
    });
  }

 private:
  template <typename Task>
  void post(Task task) {
    asio::post(connection_->io_, [connection = connection_, number = number_, task = std::move(task)] {
      task(*connection, number);
    });
  }

  std::shared_ptr<Connection> connection_;
  uint64_t number_;
};

Connection::Connection(asio::io_context& io, std::unique_ptr<Socket> socket, const HttpOptions& options,
                       std::string remote, bool loopback)
    : io_(io),
      socket_(std::move(socket)),
      options_(options),
      remote_(std::move(remote)),
      loopback_(loopback),
      since_(Clock::now()),
      read_buffer_(kReadBytes) {}

void Connection::start() {
  socket_->handshake([self = shared_from_this()](boost::system::error_code error) {
    if (self->state_ != State::kHandshake) return;
    if (error) return self->close();
    self->state_ = State::kIdle;
    self->since_ = Clock::now();
    self->read();
  });
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kReplying && !gone_) return client_gone();
  state_ = State::kClosed;
  socket_->close();
  on_gone_ = on_silence_ = nullptr;
}

void Connection::log_reply() {
  if (!options_.log) return;
  options_.log({.request = request_.get(),
                .remote = remote_,
                .status = status_,
                .bytes = body_bytes_,
                .seconds = std::chrono::duration<double>(Clock::now() - since_).count(),
                .gone = gone_});
}

void Connection::client_gone() {
  if (state_ != State::kReplying) return close();
  if (gone_) return;
  gone_ = true;
  log_reply();
  const auto callback = std::exchange(on_gone_, nullptr);
  if (callback && !complete_) callback();
  close();
}

void Connection::sweep(Clock::time_point now) {
  const HttpLimits& limits = options_.limits;
  const auto past = [now](Clock::time_point since, int seconds) {
    return now - since > std::chrono::seconds(seconds);
  };
  switch (state_) {
    case State::kHandshake:
    case State::kReading:
      if (past(since_, limits.request_seconds))
        state_ == State::kReading ? refuse(408, "the request did not arrive in time") : close();
      break;
    case State::kIdle:
      if (past(since_, limits.idle_seconds)) close();
      break;
    case State::kLingering:
      if (past(since_, kLingerSeconds)) close();
      break;
    case State::kReplying:
      if (!out_.empty()) {
        if (past(last_sent_, limits.stalled_seconds)) client_gone();
      } else if (on_silence_ && past(last_sent_, limits.silence_seconds)) {
        last_sent_ = now;
        const auto callback = on_silence_;
        callback();
      }
      break;
    case State::kClosed:
      break;
  }
}

void Connection::read() {
  if (read_outstanding_ || state_ == State::kClosed) return;
  if (state_ == State::kReplying && in_.size() >= kPipelinedBytes) return;
  read_outstanding_ = true;
  socket_->read_some(asio::buffer(read_buffer_),
                     [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
                       self->read_outstanding_ = false;
                       self->on_read(error, bytes);
                     });
}

void Connection::on_read(boost::system::error_code error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) return state_ == State::kReplying ? client_gone() : close();
  if (state_ == State::kLingering) return read();  // thrown away
  in_.append(read_buffer_.data(), bytes);
  if (state_ == State::kReplying) return read();
  parse();
}

void Connection::parse() {
  if (state_ == State::kIdle) {
    while (in_.starts_with("\r\n")) in_.erase(0, 2);  // between requests, as RFC 9112 asks
    if (in_.empty()) return read();
    state_ = State::kReading;
    since_ = Clock::now();
    head_seen_ = false;
    request_ = nullptr;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(options_.limits.header_bytes));
    parser_->body_limit(options_.limits.body_bytes);
    parser_->eager(true);
  }
  size_t used = 0;
  while (used < in_.size() && !parser_->is_done()) {
    boost::system::error_code error;
    const size_t n = parser_->put(asio::buffer(in_.data() + used, in_.size() - used), error);
    used += n;
    if (error == http::error::need_more) break;
    if (error) {
      in_.clear();
      if (error == http::error::header_limit) return refuse(431, "the request's headers are too long");
      if (error == http::error::body_limit)
        return refuse(413, fmt::format("the request's body is longer than {} bytes; see --max-body-bytes",
                                       options_.limits.body_bytes));
      return refuse(400, "not an HTTP/1.1 request: " + error.message());
    }
    if (n == 0) break;
  }
  in_.erase(0, used);
  if (parser_->is_header_done() && !head_seen_) {
    on_head();
    if (state_ != State::kReading) return;
  }
  if (parser_->is_done()) return dispatch();
  read();
}

void Connection::on_head() {
  head_seen_ = true;
  const auto& message = parser_->get();
  request_ = std::make_shared<HttpRequest>();
  request_->method = std::string(message.method_string());
  request_->remote = remote_;
  request_->loopback = loopback_;
  for (const auto& field : message)
    request_->headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                   std::string(field.value()));
  const std::string_view id = request_->header("x-request-id");
  request_->id = plain_id(id) ? std::string(id) : random_id();
  const std::string target(message.target());
  const size_t mark = target.find('?');
  request_->query = mark == std::string::npos ? "" : target.substr(mark + 1);
  const auto path = percent_decoded(std::string_view(target).substr(0, mark));
  if (!path) return refuse(400, "the request's path is not well-formed");
  request_->path = *path;
  if (!request_->header("transfer-encoding").empty() && !request_->header("content-length").empty())
    return refuse(400, "both Transfer-Encoding and Content-Length are given");
  if (const int status = options_.admit ? options_.admit(*request_) : 0) return refuse(status, "");
  const std::string expect = lower(request_->header("expect"));
  if (expect == "100-continue" && !parser_->is_done() && message.version() >= 11)
    queue("HTTP/1.1 100 Continue\r\n\r\n");
}

void Connection::dispatch() {
  keep_alive_ = parser_->keep_alive();
  chunked_ = parser_->get().version() >= 11;
  head_only_ = request_->method == "HEAD";
  request_->body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::kReplying;
  begun_ = complete_ = gone_ = false;
  status_ = 0;
  body_bytes_ = 0;
  last_sent_ = Clock::now();
  const auto reply = std::make_shared<Reply>(shared_from_this(), ++number_);
  options_.handler(request_, reply);
  read();
}

// Answers a request that the handler does not get to see, and closes.
void Connection::refuse(int status, std::string_view message) {
  state_ = State::kReplying;
  begun_ = complete_ = gone_ = false;
  status_ = 0;
  body_bytes_ = 0;
  keep_alive_ = false;
  head_only_ = request_ && request_->method == "HEAD";
  last_sent_ = Clock::now();
  reply_begin(++number_, status, {{"Content-Type", "application/json"}},
              options_.refusal ? options_.refusal(status, message) : std::string(message));
}

void Connection::head(int status, const Headers& headers, std::optional<size_t> length) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: perigee\r\n", status,
                                 reason_phrase(status), date_header());
  const auto add = [&](std::string_view name, std::string_view value) {
    text += name;
    text += ": ";
    for (char c : value)
      if (c != '\r' && c != '\n' && c != '\0') text += c;
    text += "\r\n";
  };
  for (const auto& [name, value] : headers) add(name, value);
  if (request_) {
    add("X-Request-Id", request_->id);
    if (options_.common_headers)
      for (const auto& [name, value] : options_.common_headers(*request_)) add(name, value);
  }
  if (length)
    add("Content-Length", std::to_string(*length));
  else if (chunked_)
    add("Transfer-Encoding", "chunked");
  else
    keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body
  add("Connection", keep_alive_ ? "keep-alive" : "close");
  queue(text + "\r\n");
}

void Connection::reply_begin(uint64_t number, int status, const Headers& headers,
                             std::optional<std::string> body) {
  if (number != number_ || state_ != State::kReplying || begun_ || gone_) return;
  begun_ = true;
  streamed_ = !body;
  status_ = status;
  const bool no_body = status == 204 || status == 304;
  head(status, headers, no_body ? 0 : body ? std::optional(body->size()) : std::nullopt);
  if (!body) return;
  body_bytes_ = body->size();
  if (!head_only_ && !no_body && !body->empty()) queue(std::move(*body));
  reply_end(number);
}

void Connection::reply_write(uint64_t number, const std::string& bytes) {
  if (number != number_ || state_ != State::kReplying || !begun_ || complete_ || gone_) return;
  if (unsent_ > options_.limits.unsent_bytes) return client_gone();
  body_bytes_ += bytes.size();
  if (head_only_) return;
  queue(chunked_ ? fmt::format("{:x}\r\n", bytes.size()) + bytes + "\r\n" : bytes);
}

void Connection::reply_end(uint64_t number) {
  if (number != number_ || state_ != State::kReplying || !begun_ || complete_ || gone_) return;
  complete_ = true;
  on_gone_ = on_silence_ = nullptr;
  // A body sent whole has its length in the head; chunks need their end.
  if (streamed_ && chunked_ && !head_only_) queue("0\r\n\r\n");
  if (out_.empty()) finish();
}

void Connection::reply_dropped(uint64_t number) {
  if (number != number_ || state_ != State::kReplying || complete_ || gone_) return;
  if (begun_) return client_gone();
  reply_begin(number, 500, {{"Content-Type", "application/json"}},
              options_.refusal ? options_.refusal(500, "the request was dropped") : std::string());
}

void Connection::queue(std::string bytes) {
  if (out_.empty()) last_sent_ = Clock::now();
  unsent_ += bytes.size();
  out_.push_back(std::move(bytes));
  write();
}

void Connection::write() {
  if (in_flight_ > 0 || out_.empty() || state_ == State::kClosed) return;
  std::vector<asio::const_buffer> buffers;
  for (const std::string& bytes : out_) {
    if (buffers.size() == kGather) break;
    buffers.push_back(asio::buffer(bytes));
  }
  buffers[0] += out_offset_;
  in_flight_ = buffers.size();
  socket_->write_some(buffers, [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
    self->in_flight_ = 0;
    self->on_written(error, bytes);
  });
}

void Connection::on_written(boost::system::error_code error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) return client_gone();
  last_sent_ = Clock::now();
  unsent_ -= bytes;
  out_offset_ += bytes;
  while (!out_.empty() && out_offset_ >= out_.front().size()) {
    out_offset_ -= out_.front().size();
    out_.pop_front();
  }
  if (!out_.empty()) return write();
  if (state_ == State::kReplying && complete_) finish();
}

// The reply has gone out whole.
void Connection::finish() {
  log_reply();
  request_ = nullptr;
  since_ = Clock::now();
  if (keep_alive_) {
    state_ = State::kIdle;
    return parse();
  }
  // Closing at once with input unread would reset the connection, and the reply might be lost.
  state_ = State::kLingering;
  in_.clear();
  socket_->shutdown_send(shared_from_this());
  read();
}

}  // namespace perigee::serve
