// One client connection: reads requests one after the other, hands each to the handler, and sends the
// replies. It always has a read outstanding while a reply is being made, so that a client that leaves is
// noticed in every phase; what a pipelining client sends meanwhile waits in the buffer.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "serve/http.h"
#include "serve/socket.h"

namespace perigee::serve {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(boost::asio::io_context& io, std::unique_ptr<Socket> socket, const HttpOptions& options,
             std::string remote, bool loopback);

  // All on the I/O thread.
  void start();
  // Called about once a second: timeouts and silence.
  void sweep(Clock::time_point now);
  // Cuts the connection.
  void close();
  bool closed() const { return state_ == State::kClosed; }
  bool replying() const { return state_ == State::kReplying; }

 private:
  friend class Reply;
  enum class State { kHandshake, kIdle, kReading, kReplying, kLingering, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read();
  void on_read(boost::system::error_code error, size_t bytes);
  void parse();
  void on_head();
  void dispatch();
  void refuse(int status, std::string_view message);
  void queue(std::string bytes);
  void write();
  void on_written(boost::system::error_code error, size_t bytes);
  void finish();
  void client_gone();
  void log_reply();
  void head(int status, const Headers& headers, std::optional<size_t> length);
  // The reply's calls, moved to the I/O thread; `number` tells a late call of an earlier reply.
  void reply_begin(uint64_t number, int status, const Headers& headers, std::optional<std::string> body);
  void reply_write(uint64_t number, const std::string& bytes);
  void reply_end(uint64_t number);
  void reply_dropped(uint64_t number);

  boost::asio::io_context& io_;
  std::unique_ptr<Socket> socket_;
  const HttpOptions& options_;
  std::string remote_;
  bool loopback_;

  State state_ = State::kHandshake;
  Clock::time_point since_;      // of the state; while reading, of the request's first byte
  Clock::time_point last_sent_;  // last byte queued or taken
  bool read_outstanding_ = false;
  std::string in_;  // bytes received and not yet parsed
  std::vector<char> read_buffer_;
  std::optional<Parser> parser_;
  bool head_seen_ = false;
  std::shared_ptr<HttpRequest> request_;

  std::deque<std::string> out_;
  size_t out_offset_ = 0;  // of out_.front(), already taken
  size_t in_flight_ = 0;   // strings of out_ that the write outstanding refers to
  std::atomic<size_t> unsent_ = 0;

  // Of the reply being made.
  std::atomic<uint64_t> number_ = 0;
  bool begun_ = false, complete_ = false, streamed_ = false, chunked_ = false, keep_alive_ = true,
       head_only_ = false;
  int status_ = 0;
  size_t body_bytes_ = 0;
  std::function<void()> on_gone_, on_silence_;
  bool gone_ = false;
};

}  // namespace perigee::serve
