#include "cli/load_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace perigee::cli {

namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::unique_ptr<Descriptor> connect_to(const LoadTarget& target) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int status = getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &found);
  if (status != 0) fail(ErrorCode::kUsage, "--base-url: {}: {}", target.host, gai_strerror(status));
  auto fd = std::make_unique<Descriptor>(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int connected = connect(fd->get(), found->ai_addr, found->ai_addrlen);
  const int why = errno;
  freeaddrinfo(found);
  if (connected != 0)
    fail(ErrorCode::kUsage, "--base-url: {}:{}: {}; start `perigee serve` there", target.host, target.port,
         std::strerror(why));
  const int one = 1;
  setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

std::string request_text(const LoadTarget& target, const std::string& method, const std::string& path,
                         const std::string& body) {
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nConnection: close\r\n",
                  method, path, target.host, target.port);
  if (!target.api_key.empty()) text += "Authorization: Bearer " + target.api_key + "\r\n";
  return text + fmt::format("Content-Length: {}\r\n\r\n", body.size()) + body;
}

// One request under way.
struct Flight {
  size_t index;
  std::unique_ptr<Descriptor> fd;
  std::string out, in;  // to be sent; received and not yet read
  Clock::time_point sent, last_piece;
  int status = 0;  // 0 until the head has come
  bool chunked = false;
  std::string body;  // without the framing, up to the next whole event
  bool done = false, saw_end = false;
};

// Takes what the body says by now; a server-sent event counts as the piece that it holds.
void read_events(Flight& f, LoadResult& r, Clock::time_point now) {
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  for (size_t end; (end = f.body.find("\n\n")) != std::string::npos; f.body.erase(0, end + 2)) {
    const std::string_view event = std::string_view(f.body).substr(0, end);
    if (!event.starts_with("data: ")) continue;
    const std::string_view data = event.substr(6);
    if (data == "[DONE]") {
      f.saw_end = true;
      continue;
    }
    boost::system::error_code error;
    const boost::json::value value =
        boost::json::parse(boost::json::string_view(data.data(), data.size()), error);
    if (error || !value.is_object()) {
      r.error = "an event is not a JSON object";
      continue;
    }
    const boost::json::object& object = value.get_object();
    if (const boost::json::value* failed = object.if_contains("error"))
      r.error = boost::json::serialize(*failed);
    if (const boost::json::value* usage = object.if_contains("usage"); usage && usage->is_object()) {
      r.prompt_tokens = usage->at("prompt_tokens").to_number<int64_t>();
      r.output_tokens = usage->at("completion_tokens").to_number<int64_t>();
      if (const boost::json::value* details = usage->get_object().if_contains("prompt_tokens_details");
          details && details->is_object())
        r.cached_tokens = details->at("cached_tokens").to_number<int64_t>();
    }
    const boost::json::value* choices = object.if_contains("choices");
    if (!choices || choices->get_array().empty()) continue;
    const boost::json::object& choice = choices->get_array()[0].get_object();
    const boost::json::value* text = choice.if_contains("text");
    const boost::json::value* delta = choice.if_contains("delta");
    const bool piece = text || (delta && delta->is_object() && !delta->get_object().contains("role"));
    if (delta && delta->is_object()) text = delta->get_object().if_contains("content");
    if (text && text->is_string()) r.text += std::string_view(text->get_string());
    if (!piece) continue;
    if (r.first == 0)
      r.first = seconds(now - f.sent);
    else
      r.gaps.push_back(seconds(now - f.last_piece));
    f.last_piece = now;
    r.last = seconds(now - f.sent);
  }
}

// Head, framing and events of what has arrived.
void read_input(Flight& f, LoadResult& r, Clock::time_point now) {
  if (f.status == 0) {
    const size_t end = f.in.find("\r\n\r\n");
    if (end == std::string::npos) return;
    f.status = f.in.size() > 12 ? std::atoi(f.in.c_str() + 9) : -1;
    f.chunked = f.in.substr(0, end).find("chunked") != std::string::npos;
    f.in.erase(0, end + 4);
  }
  if (!f.chunked) {
    f.body += std::exchange(f.in, {});
  } else {
    for (;;) {
      const size_t end = f.in.find("\r\n");
      if (end == std::string::npos) break;
      const size_t size = std::strtoul(f.in.c_str(), nullptr, 16);
      if (f.in.size() < end + 2 + size + 2) break;
      f.body.append(f.in, end + 2, size);
      f.in.erase(0, end + 2 + size + 2);
    }
  }
  if (f.status == 200) read_events(f, r, now);
}

// What the socket lets us do; `done` at the end of the stream.
void advance(Flight& f, LoadResult& r, short events) {
  if ((events & POLLOUT) && !f.out.empty()) {
    const ssize_t n = send(f.fd->get(), f.out.data(), f.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) f.out.erase(0, static_cast<size_t>(n));
  }
  if (!(events & (POLLIN | POLLHUP | POLLERR))) return;
  char buffer[65536];
  const ssize_t n = recv(f.fd->get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (n > 0) {
    f.in.append(buffer, static_cast<size_t>(n));
    read_input(f, r, Clock::now());
    return;
  }
  f.done = true;
  if (r.error.empty() && f.status != 200)
    r.error = fmt::format("status {}: {}", f.status, f.body.substr(0, 300));
  if (r.error.empty() && !f.saw_end) r.error = "the stream ended without [DONE]";
  r.ok = r.error.empty();
}

}  // namespace

std::vector<LoadResult> run_load(const LoadTarget& target, const std::vector<LoadItem>& items,
                                 int concurrency, const std::function<void(size_t)>& progress) {
  std::vector<LoadResult> results(items.size());
  std::vector<double> due(items.size(), -1);  // negative: waits for another
  std::vector<size_t> waiting;
  for (size_t i = 0; i < items.size(); ++i) {
    waiting.push_back(i);
    if (!items[i].after) due[i] = items[i].due;
  }
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<Flight> flights;
  size_t done = 0;
  while (done < items.size()) {
    double next = 3600;
    for (size_t i = 0; i < waiting.size() && static_cast<int>(flights.size()) < concurrency;) {
      const size_t item = waiting[i];
      if (due[item] < 0 || due[item] > elapsed()) {
        if (due[item] >= 0) next = std::min(next, due[item] - elapsed());
        ++i;
        continue;
      }
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
      Flight f{.index = item, .fd = connect_to(target)};
      f.out = request_text(target, "POST", target.path, items[item].body(results));
      f.sent = f.last_piece = Clock::now();
      results[item].sent = std::chrono::duration<double>(f.sent - start).count();
      flights.push_back(std::move(f));
    }
    std::vector<pollfd> polls;
    for (const Flight& f : flights)
      polls.push_back({f.fd->get(), static_cast<short>(f.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    poll(polls.data(), polls.size(), static_cast<int>(std::clamp(next * 1000, 0.0, 1000.0)));
    for (size_t i = 0; i < flights.size(); ++i)
      advance(flights[i], results[flights[i].index], polls[i].revents);
    for (const Flight& f : flights) {
      if (!f.done) continue;
      ++done;
      for (size_t i = 0; i < items.size(); ++i)
        if (items[i].after == f.index) due[i] = elapsed() + items[i].due;
      if (progress) progress(done);
    }
    std::erase_if(flights, [](const Flight& f) { return f.done; });
  }
  return results;
}

std::pair<int, std::string> http_get(const LoadTarget& target, const std::string& path) {
  Flight f{.index = 0, .fd = connect_to(target)};
  f.out = request_text(target, "GET", path, "");
  LoadResult r;
  while (!f.done) {
    pollfd one = {f.fd->get(), static_cast<short>(f.out.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    if (poll(&one, 1, 30000) == 0)
      fail(ErrorCode::kUsage, "--base-url: no answer from {}{}", target.host, path);
    advance(f, r, one.revents);
  }
  return {f.status, f.body};
}

}  // namespace perigee::cli
