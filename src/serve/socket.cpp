#include "serve/socket.h"

namespace perigee::serve {
namespace {

namespace asio = boost::asio;

class PlainSocket : public Socket {
 public:
  explicit PlainSocket(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  void handshake(std::function<void(boost::system::error_code)> done) override { done({}); }
  void read_some(asio::mutable_buffer into, Io done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void write_some(const std::vector<asio::const_buffer>& from, Io done) override {
    socket_.async_write_some(from, std::move(done));
  }
  void shutdown_send(std::shared_ptr<void>) override {
    boost::system::error_code ignored;
    socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  }
  void close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  asio::ip::tcp::socket socket_;
};

}  // namespace

std::unique_ptr<Socket> plain_socket(asio::ip::tcp::socket socket) {
  return std::make_unique<PlainSocket>(std::move(socket));
}

}  // namespace perigee::serve
