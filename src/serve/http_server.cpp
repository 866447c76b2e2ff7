#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>

#include "base/error.h"
#include "serve/http.h"
#include "serve/http_connection.h"

namespace perigee::serve {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

namespace {

// A connection needs a file descriptor: take as many as the system lets us.
void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

struct HttpServer::Parts {
  HttpOptions options;
  std::unique_ptr<TlsContext> tls;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer sweep_timer{io}, retry_timer{io};
  asio::signal_set signals{io};
  std::list<std::shared_ptr<Connection>> connections;
  std::atomic<size_t> count = 0;

  void accept() {
    acceptor.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {  // out of descriptors, most likely: some will be free again
        retry_timer.expires_after(std::chrono::milliseconds(100));
        retry_timer.async_wait([this](boost::system::error_code stopped) {
          if (!stopped) accept();
        });
        return;
      }
      add(std::move(socket));
      accept();
    });
  }

  void add(tcp::socket socket) {
    boost::system::error_code error;
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error || connections.size() >= options.limits.connections) return;  // closes it
    socket.set_option(tcp::no_delay(true), error);
    const bool loopback =
        peer.address().is_loopback() ||
        (peer.address().is_v6() && peer.address().to_v6().is_v4_mapped() &&
         asio::ip::make_address_v4(asio::ip::v4_mapped, peer.address().to_v6()).is_loopback());
    std::unique_ptr<Socket> wrapped = tls ? tls->wrap(std::move(socket)) : plain_socket(std::move(socket));
    connections.push_back(std::make_shared<Connection>(
        io, std::move(wrapped), options, fmt::format("{}:{}", peer.address().to_string(), peer.port()),
        loopback));
    count = connections.size();
    connections.back()->start();
  }

  void sweep() {
    sweep_timer.expires_after(std::chrono::seconds(1));
    sweep_timer.async_wait([this](boost::system::error_code stopped) {
      if (stopped) return;
      const auto now = Connection::Clock::now();
      // A callback may reach back into the server: walk a copy.
      const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
      for (const auto& connection : all) connection->sweep(now);
      connections.remove_if([](const auto& connection) { return connection->closed(); });
      count = connections.size();
      sweep();
    });
  }

  void await_signal(std::function<void(int)> on_signal) {
    signals.async_wait([this, on_signal](boost::system::error_code stopped, int signal) {
      if (stopped) return;
      on_signal(signal);
      await_signal(on_signal);
    });
  }
};

HttpServer::HttpServer(HttpOptions options) : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  p.options = std::move(options);
  if (!p.options.certificate_file.empty())
    p.tls = tls_context(p.options.certificate_file, p.options.key_file);
  raise_descriptor_limit();
  boost::system::error_code error;
  const auto give_up = [&](const char* what) {
    fail(ErrorCode::kUsage, "--host {} --port {}: {}: {}; choose another, or stop what holds it",
         p.options.host, p.options.port, what, error.message());
  };
  tcp::resolver resolver(p.io);
  const auto found =
      resolver.resolve(p.options.host, std::to_string(p.options.port), tcp::resolver::passive, error);
  if (error || found.empty()) give_up("no such address");
  const tcp::endpoint endpoint = *found.begin();
  p.acceptor.open(endpoint.protocol(), error);
  if (!error) p.acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) p.acceptor.bind(endpoint, error);
  if (!error) p.acceptor.listen(4096, error);
  if (error) give_up("cannot listen");
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return parts_->acceptor.local_endpoint().port(); }

void HttpServer::catch_signals(std::function<void(int)> on_signal) {
  parts_->signals.add(SIGINT);
  parts_->signals.add(SIGTERM);
  parts_->await_signal(std::move(on_signal));
}

void HttpServer::run() {
  Parts& p = *parts_;
  p.accept();
  p.sweep();
  p.io.run();
  for (const auto& connection : p.connections) connection->close();
  p.connections.clear();
}

void HttpServer::stop() { parts_->io.stop(); }

void HttpServer::post(std::function<void()> task) { asio::post(parts_->io, std::move(task)); }

void HttpServer::after(double seconds, std::function<void()> task) {
  post([this, seconds, task = std::move(task)] {
    auto timer = std::make_shared<asio::steady_timer>(parts_->io);
    timer->expires_after(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
    timer->async_wait([timer, task](boost::system::error_code stopped) {
      if (!stopped) task();
    });
  });
}

size_t HttpServer::connections() const { return parts_->count; }

size_t HttpServer::busy() const {
  return std::count_if(parts_->connections.begin(), parts_->connections.end(),
                       [](const auto& connection) { return connection->replying(); });
}

}  // namespace perigee::serve
