// A blocking HTTP client on a raw socket: sends exactly the bytes given, reads replies strictly.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

namespace perigee::serve {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;  // the body ended as its framing says
};

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("connect failed");
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int descriptor() const { return fd_; }

  // False when the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
  }
  void post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  // More bytes into the buffer; false at the end of the stream, or after ten seconds.
  bool more() {
    pollfd wait = {fd_, POLLIN, 0};
    if (poll(&wait, 1, 10000) <= 0) return false;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    in_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  // Up to and with `end`.
  std::optional<std::string> read_until(const std::string& end) {
    size_t at;
    while ((at = in_.find(end)) == std::string::npos)
      if (!more()) return std::nullopt;
    std::string out = in_.substr(0, at + end.size());
    in_.erase(0, out.size());
    return out;
  }
  std::optional<std::string> read_bytes(size_t n) {
    while (in_.size() < n)
      if (!more()) return std::nullopt;
    std::string out = in_.substr(0, n);
    in_.erase(0, n);
    return out;
  }
  // The end of the stream, with nothing before it.
  bool at_end() { return in_.empty() && !more() && in_.empty(); }

  // Only the head of a reply.
  HttpResponse read_head() {
    HttpResponse r;
    const auto head = read_until("\r\n\r\n");
    if (!head || !head->starts_with("HTTP/1.1 ")) return r;
    r.status = std::stoi(head->substr(9, 3));
    size_t at = head->find("\r\n") + 2;
    while (at < head->size() - 2) {
      const size_t end = head->find("\r\n", at), colon = head->find(": ", at);
      std::string name = head->substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](char c) { return static_cast<char>(std::tolower(c)); });
      r.headers[name] = head->substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    return r;
  }
  std::optional<std::string> read_chunk() {
    const auto size = read_until("\r\n");
    if (!size) return std::nullopt;
    const size_t n = std::stoul(*size, nullptr, 16);
    const auto bytes = read_bytes(n + 2);
    if (!bytes || !bytes->ends_with("\r\n")) return std::nullopt;
    return bytes->substr(0, n);
  }
  HttpResponse read() {
    HttpResponse r = read_head();
    if (const auto length = r.headers.find("content-length"); length != r.headers.end()) {
      const auto body = read_bytes(std::stoul(length->second));
      r.complete = body.has_value();
      r.body = body.value_or(in_);
    } else if (r.headers["transfer-encoding"] == "chunked") {
      while (const auto chunk = read_chunk()) {
        r.complete = chunk->empty();
        if (chunk->empty()) break;
        r.body += *chunk;
      }
    } else if (r.status != 0) {
      while (more()) {
      }
      r.body = std::exchange(in_, {});
      r.complete = true;
    }
    return r;
  }

 private:
  int fd_;
  std::string in_;
};

}  // namespace perigee::serve
