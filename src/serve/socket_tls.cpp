#include "base/error.h"
#include "serve/socket.h"

#ifdef PERIGEE_TLS
#include <boost/asio/ssl.hpp>
#endif

namespace perigee::serve {

#ifdef PERIGEE_TLS
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;

class TlsSocket : public Socket {
 public:
  TlsSocket(asio::ip::tcp::socket socket, ssl::context& context) : stream_(std::move(socket), context) {}

  void handshake(std::function<void(boost::system::error_code)> done) override {
    stream_.async_handshake(ssl::stream_base::server, std::move(done));
  }
  void read_some(asio::mutable_buffer into, Io done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void write_some(const std::vector<asio::const_buffer>& from, Io done) override {
    stream_.async_write_some(from, std::move(done));
  }
  // Without waiting for the peer's close_notify: our messages carry their own length.
  void shutdown_send(std::shared_ptr<void> owner) override {
    stream_.async_shutdown([owner = std::move(owner)](boost::system::error_code) {});
  }
  void close() override {
    boost::system::error_code ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  ssl::stream<asio::ip::tcp::socket> stream_;
};

class Context : public TlsContext {
 public:
  Context(const std::string& certificate_file, const std::string& key_file)
      : context_(ssl::context::tls_server) {
    context_.set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 |
                         ssl::context::no_tlsv1_1);
    boost::system::error_code error;
    context_.use_certificate_chain_file(certificate_file, error);
    if (error)
      fail(ErrorCode::kUsage, "--ssl-certfile {}: {}; give a PEM certificate chain", certificate_file,
           error.message());
    context_.use_private_key_file(key_file, ssl::context::pem, error);
    if (error)
      fail(ErrorCode::kUsage, "--ssl-keyfile {}: {}; give the certificate's key as PEM", key_file,
           error.message());
  }
  std::unique_ptr<Socket> wrap(asio::ip::tcp::socket socket) override {
    return std::make_unique<TlsSocket>(std::move(socket), context_);
  }

 private:
  ssl::context context_;
};

}  // namespace

std::unique_ptr<TlsContext> tls_context(const std::string& certificate_file, const std::string& key_file) {
  return std::make_unique<Context>(certificate_file, key_file);
}
#else
std::unique_ptr<TlsContext> tls_context(const std::string& certificate_file, const std::string&) {
  fail(
      ErrorCode::kUnsupported,
      "--ssl-certfile {}: this build has no TLS; install libssl-dev and build again, or put a proxy in front",
      certificate_file);
}
#endif

}  // namespace perigee::serve
