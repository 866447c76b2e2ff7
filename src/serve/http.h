// What the routes see of HTTP: a request that has arrived whole, and a reply that any thread may write, at
// once or in pieces. Sockets and parsing are behind it, in http_connection.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace perigee::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;      // the client's X-Request-Id where it has one of our form, else our own
  std::string method;  // "GET"
  std::string path;    // decoded, without the query
  std::string query;   // as sent, "" when absent
  Headers headers;     // names in lower case
  std::string body;
  std::string remote;  // address:port of the peer
  bool loopback = false;

  // The header's value, "" when absent. `name` in lower case.
  std::string_view header(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (key == name) return value;
    return {};
  }
};

// The reply to one request. Every member may be called from any thread; the calls of one thread keep their
// order. A reply that is let go of before it is complete answers 500, or cuts the connection if it has begun.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void send(int status, Headers headers, std::string body) = 0;

  // In pieces: begin, any number of writes, end.
  virtual void begin(int status, Headers headers) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void end() = 0;
  // Cuts the connection, so that the client cannot take a part for the whole.
  virtual void abort() = 0;

  // Bytes written but not yet taken by the client's socket.
  virtual size_t unsent() const = 0;
  // `callback` runs once, on the I/O thread, if the client goes away before the reply is complete; at once if
  // it already has. A client that closes its sending side counts as gone.
  virtual void on_gone(std::function<void()> callback) = 0;
  // `callback` runs on the I/O thread whenever nothing has been sent for a while.
  virtual void on_silence(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpRequest>, std::shared_ptr<HttpReply>)>;

struct HttpLimits {
  size_t header_bytes = 32 << 10;
  size_t body_bytes = 64 << 20;
  size_t connections = 16384;
  size_t unsent_bytes = 8 << 20;  // of one connection; a client that reads more slowly is cut off
  int idle_seconds = 3600;        // between requests
  int request_seconds = 120;      // for one request to arrive
  int stalled_seconds = 300;      // with bytes to send and none taken
  int silence_seconds = 10;       // see HttpReply::on_silence
};

// One finished exchange, for the access log.
struct HttpExchange {
  const HttpRequest* request;  // null when none could be read
  std::string_view remote;
  int status;
  size_t bytes;    // of the reply's body
  double seconds;  // from the request's first byte
  bool gone;       // the client left first
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  HttpLimits limits;
  std::string certificate_file, key_file;  // PEM; both: TLS
  // Called when the head of a request has arrived, before its body: 0 to go on, or the status to refuse with.
  std::function<int(const HttpRequest&)> admit;
  HttpHandler handler;
  // The body of a refusal that never reached the handler.
  std::function<std::string(int status, std::string_view message)> refusal;
  // Headers of every reply to this request.
  std::function<Headers(const HttpRequest&)> common_headers;
  std::function<void(const HttpExchange&)> log;
};

// Serves until stop(). One I/O thread, the caller's.
class HttpServer {
 public:
  // Opens the port; throws Error{kUsage} naming host and port when that fails.
  explicit HttpServer(HttpOptions options);
  ~HttpServer();

  int port() const;  // the one opened, when 0 was asked for
  // From now on `on_signal` is called for SIGINT and SIGTERM, on the I/O thread, once run() has begun.
  void catch_signals(std::function<void(int)> on_signal);
  void run();
  // From any thread. Connections still open are cut.
  void stop();
  // Runs `task` on the I/O thread, now or after some time.
  void post(std::function<void()> task);
  void after(double seconds, std::function<void()> task);
  size_t connections() const;
  // Connections with a reply under way; on the I/O thread.
  size_t busy() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace perigee::serve
