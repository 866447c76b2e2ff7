#include "http_check.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cctype>
#include <cstring>

#include "require.h"
#include "serve/http_connection.h"

namespace perigee {

namespace {

namespace asio = boost::asio;
using namespace serve;

// Gives the input out in pieces and keeps what is written.
class FakeSocket : public Socket {
 public:
  FakeSocket(asio::io_context& io, std::string_view input, std::string& written)
      : io_(io), input_(input), written_(written) {
    for (const char c : input) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  }

  void handshake(std::function<void(boost::system::error_code)> done) override { done({}); }
  void read_some(asio::mutable_buffer into, Io done) override {
    const size_t bytes = std::min({into.size(), input_.size(), piece()});
    if (bytes > 0) std::memcpy(into.data(), input_.data(), bytes);
    input_.remove_prefix(bytes);
    finish(std::move(done),
           bytes > 0 ? boost::system::error_code() : asio::error::make_error_code(asio::error::eof), bytes);
  }
  void write_some(const std::vector<asio::const_buffer>& from, Io done) override {
    const size_t bytes = std::min(from[0].size(), piece());
    written_.append(static_cast<const char*>(from[0].data()), bytes);
    finish(std::move(done), {}, bytes);
  }
  void shutdown_send(std::shared_ptr<void>) override {}
  void close() override { closed_ = true; }

 private:
  size_t piece() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return 1 + (state_ % 4 ? state_ / 4 % 4096 : state_ / 4 % 8);
  }
  void finish(Io done, boost::system::error_code error, size_t bytes) {
    asio::post(io_, [done = std::move(done), error, bytes] { done(error, bytes); });
  }

  asio::io_context& io_;
  std::string_view input_;
  std::string& written_;
  uint64_t state_ = 0xCBF29CE484222325u;
  bool closed_ = false;
};

void answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  switch (request.path.size() % 4) {
    case 0:
      return reply->send(200, {{"Content-Type", "text/plain"}}, std::string(request.body.size() % 100, 'x'));
    case 1:
      reply->begin(200, {{"X-Query", request.query}});
      for (int i = 0; i < 3; ++i) reply->write(std::string(1 + request.body.size() % 50, 'y'));
      return reply->end();
    case 2:
      reply->begin(404, {});
      return reply->abort();
    default:
      return;  // let go of unanswered
  }
}

// Status lines; an error's text may name HTTP/1.1 too.
size_t heads_in(std::string_view text) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  size_t n = 0;
  for (size_t at = 0; (at = text.find(kVersion, at)) != std::string_view::npos;) {
    at += kVersion.size();
    const std::string_view status = text.substr(at, 3);
    // What an Expect is answered with is not the reply.
    n += status.size() == 3 && std::isdigit(static_cast<unsigned char>(status[0])) && status != "100";
  }
  return n;
}

}  // namespace

void check_http(std::string_view input) {
  asio::io_context io;
  size_t exchanges = 0;
  HttpOptions options;
  options.limits.header_bytes = 1024;
  options.limits.body_bytes = 1024;
  options.admit = [](const HttpRequest& request) { return request.path == "/no" ? 403 : 0; };
  options.handler = [](auto request, auto reply) { answer(*request, reply); };
  options.log = [&](const HttpExchange&) { ++exchanges; };
  std::string written;
  const auto connection = std::make_shared<Connection>(io, std::make_unique<FakeSocket>(io, input, written),
                                                       options, "fuzzer", true);
  connection->start();
  io.run();
  connection->sweep(Connection::Clock::now() + std::chrono::hours(2));
  io.restart();
  io.run();
  require(connection->closed(), "a connection outlives its client");
  // The client may be gone after the first few bytes.
  require(written.starts_with(std::string_view("HTTP/1.1 ").substr(0, written.size())),
          "what is sent is no reply");
  require(heads_in(written) <= exchanges, "more replies than requests");
}

}  // namespace perigee
