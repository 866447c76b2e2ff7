// A connected stream socket, plain or TLS, behind one interface, so that the templates of each are compiled
// once.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace perigee::serve {

using Io = std::function<void(boost::system::error_code, size_t)>;

// Used on the I/O thread alone; the callbacks run there.
class Socket {
 public:
  virtual ~Socket() = default;
  virtual void handshake(std::function<void(boost::system::error_code)> done) = 0;
  virtual void read_some(boost::asio::mutable_buffer into, Io done) = 0;
  virtual void write_some(const std::vector<boost::asio::const_buffer>& from, Io done) = 0;
  // No more will be written; reads go on. `owner` keeps this socket alive meanwhile.
  virtual void shutdown_send(std::shared_ptr<void> owner) = 0;
  virtual void close() = 0;
};

std::unique_ptr<Socket> plain_socket(boost::asio::ip::tcp::socket socket);

// Certificate and key of a TLS server.
class TlsContext {
 public:
  virtual ~TlsContext() = default;
  virtual std::unique_ptr<Socket> wrap(boost::asio::ip::tcp::socket socket) = 0;
};

// Throws Error{kUsage} naming the file that cannot be read, or kUnsupported in a build without OpenSSL.
std::unique_ptr<TlsContext> tls_context(const std::string& certificate_file, const std::string& key_file);

}  // namespace perigee::serve
