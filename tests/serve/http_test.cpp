#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "client.h"
#include "serve/http.h"
#include "serve/http_text.h"

namespace perigee::serve {
namespace {

// A server on a free port, with the test's handler.
class TestServer {
 public:
  explicit TestServer(HttpHandler handler, HttpLimits limits = {},
                      std::function<int(const HttpRequest&)> admit = {}) {
    HttpOptions options;
    options.port = 0;
    options.limits = limits;
    options.handler = std::move(handler);
    options.admit = std::move(admit);
    options.refusal = [](int status, std::string_view message) {
      return std::to_string(status) + " " + std::string(message);
    };
    options.log = [this](const HttpExchange& e) {
      const std::lock_guard lock(mutex_);
      logged_.push_back({e.status, e.gone});
    };
    server_ = std::make_unique<HttpServer>(std::move(options));
    thread_ = std::thread([this] { server_->run(); });
  }
  ~TestServer() {
    server_->stop();
    thread_.join();
  }
  int port() const { return server_->port(); }
  HttpServer& server() { return *server_; }
  std::vector<std::pair<int, bool>> logged() {
    const std::lock_guard lock(mutex_);
    return logged_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, bool>> logged_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

void echo(std::shared_ptr<HttpRequest> request, std::shared_ptr<HttpReply> reply) {
  reply->send(
      200, {{"X-Path", request->path}, {"X-Query", request->query}},
      request->method + " " + std::to_string(request->body.size()) + " " + request->body.substr(0, 40));
}

// Waits for what other threads are about to do.
bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Http, KeepsTheConnectionAndDecodesThePath) {
  TestServer server(echo);
  Client client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.get("/a%20b?x=1&y=%41");
    const HttpResponse r = client.read();
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.headers.at("x-path"), "/a b");
    EXPECT_EQ(r.headers.at("x-query"), "x=1&y=%41");
    EXPECT_EQ(r.headers.at("connection"), "keep-alive");
    EXPECT_EQ(r.headers.at("x-request-id").size(), 32u);
    EXPECT_EQ(r.body, "GET 0 ");
  }
}

TEST(Http, RequestIdsOfClientsComeBackWhenTheyAreHarmless) {
  TestServer server(echo);
  Client client(server.port());
  client.get("/", "X-Request-Id: abc-1.2:3_x\r\n");
  EXPECT_EQ(client.read().headers.at("x-request-id"), "abc-1.2:3_x");
  client.get("/", "X-Request-Id: a\"b\r\n");
  EXPECT_EQ(client.read().headers.at("x-request-id").size(), 32u);
}

TEST(Http, BodiesByLengthAndInChunksByteForByte) {
  TestServer server(echo);
  const std::string body(200000, 'b');
  Client client(server.port());
  client.post("/", body);
  EXPECT_EQ(client.read().body, "POST 200000 " + std::string(40, 'b'));
  client.send(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n "
      "world\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, "POST 11 hello world");
  // The same, one byte at a time.
  for (char c : std::string("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"))
    client.send(std::string(1, c));
  EXPECT_EQ(client.read().body, "POST 3 abc");
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server(echo);
  Client client(server.port());
  std::string all;
  for (int i = 0; i < 50; ++i)
    all += fmt::format("POST /{} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{}", i,
                       static_cast<char>('a' + i % 26));
  client.send(all);
  for (int i = 0; i < 50; ++i) {
    const HttpResponse r = client.read();
    EXPECT_EQ(r.headers.at("x-path"), fmt::format("/{}", i));
    EXPECT_EQ(r.body, std::string("POST 1 ") + static_cast<char>('a' + i % 26));
  }
}

TEST(Http, ExpectContinueAndHead) {
  TestServer server(echo);
  Client client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.read().body, "POST 2 ok");
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpResponse head = client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "7");
  client.get("/next");
  EXPECT_EQ(client.read().headers.at("x-path"), "/next");  // no body in between
}

TEST(Http, OldClientsGetTheBodyUpToTheEnd) {
  TestServer server([](auto, auto reply) {
    reply->begin(200, {});
    reply->write("one ");
    reply->write("two");
    reply->end();
  });
  Client client(server.port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  const HttpResponse r = client.read();
  EXPECT_EQ(r.headers.at("connection"), "close");
  EXPECT_EQ(r.body, "one two");
  EXPECT_TRUE(client.at_end());
}

struct Refused {
  const char* name;
  std::string bytes;
  int status;
};

TEST(Http, RefusesWhatIsNotARequest) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  limits.header_bytes = 2000;
  TestServer server(echo, limits, [](const HttpRequest& r) { return r.path == "/closed" ? 401 : 0; });
  const Refused cases[] = {
      {"noise", "\x16\x03\x01\x02 hello\r\n\r\n", 400},
      {"long body", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", 413},
      {"long chunked body",
       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') +
           "\r\n0\r\n\r\n",
       413},
      {"long headers", "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(3000, 'a') + "\r\n\r\n", 431},
      {"endless header", "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(5000, 'a'), 431},
      {"smuggled length",
       "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
       400},
      {"bad escape", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"nul in path", "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"bad chunk", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"not admitted, before its body", "POST /closed HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n",
       401},
  };
  for (const Refused& c : cases) {
    Client client(server.port());
    client.send(c.bytes);
    const HttpResponse r = client.read();
    EXPECT_EQ(r.status, c.status) << c.name;
    EXPECT_EQ(r.headers.at("connection"), "close") << c.name;
    EXPECT_TRUE(r.complete) << c.name;
    EXPECT_TRUE(client.at_end()) << c.name;
  }
  Client client(server.port());  // and goes on
  client.get("/");
  EXPECT_EQ(client.read().status, 200);
}

// A refusal must reach a client that is still sending its body.
TEST(Http, ARefusalIsNotLostToUnreadInput) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  TestServer server(echo, limits);
  Client client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n");
  client.send(std::string(1 << 20, 'x'));
  EXPECT_EQ(client.read().status, 413);
}

TEST(Http, StreamsInChunksAsTheyAreWritten) {
  std::promise<std::shared_ptr<HttpReply>> got;
  TestServer server([&](auto, auto reply) {
    reply->begin(200, {{"Content-Type", "text/event-stream"}});
    reply->write("first");
    got.set_value(reply);
  });
  Client client(server.port());
  client.get("/");
  EXPECT_EQ(client.read_head().headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(client.read_chunk(), "first");
  const auto reply = got.get_future().get();
  reply->write("");  // would end the body
  reply->write("second");
  EXPECT_EQ(client.read_chunk(), "second");
  reply->end();
  EXPECT_EQ(client.read_chunk(), "");
}

TEST(Http, AClientThatLeavesIsNoticedInEveryPhase) {
  std::mutex mutex;
  std::shared_ptr<HttpReply> kept;
  std::atomic<int> gone = 0;
  TestServer server([&](auto request, auto reply) {
    reply->on_gone([&] { ++gone; });
    if (request->path == "/begun") {
      reply->begin(200, {});
      reply->write("x");
    }
    const std::lock_guard lock(mutex);
    kept = reply;
  });
  for (const char* path : {"/waiting", "/begun"}) {
    const int before = gone;
    Client client(server.port());
    client.get(path);
    if (std::string(path) == "/begun") client.read_head();
    ASSERT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex);
      return kept != nullptr;
    }));
    client.close();
    EXPECT_TRUE(eventually([&] { return gone == before + 1; })) << path;
    {
      const std::lock_guard lock(mutex);
      kept->write("into the void");
      kept->end();
      kept = nullptr;
    }
  }
  EXPECT_TRUE(eventually([&] { return server.logged().size() == 2; }));
  EXPECT_TRUE(server.logged()[0].second && server.logged()[1].second);
}

TEST(Http, PipelinedBytesAreNotADisconnect) {
  std::promise<std::shared_ptr<HttpReply>> got;
  std::atomic<bool> gone = false;
  std::atomic<int> calls = 0;
  TestServer server([&](auto request, auto reply) {
    if (++calls > 1) return echo(request, reply);
    reply->on_gone([&] { gone = true; });
    got.set_value(reply);
  });
  Client client(server.port());
  client.get("/first");
  const auto reply = got.get_future().get();
  client.get("/second");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(gone);
  reply->send(200, {}, "done");
  EXPECT_EQ(client.read().body, "done");
  EXPECT_EQ(client.read().headers.at("x-path"), "/second");
}

TEST(Http, ADroppedReplyIsAnErrorAndACutOne) {
  TestServer server([](auto request, auto reply) {
    if (request->path == "/late") {
      reply->begin(200, {});
      reply->write("part");
    }
  });
  Client client(server.port());
  client.get("/");
  EXPECT_EQ(client.read().status, 500);
  client.get("/late");
  const HttpResponse r = client.read();
  EXPECT_EQ(r.status, 200);
  EXPECT_FALSE(r.complete);
}

// A reader that takes nothing is cut off at the limit, and others do not notice it.
TEST(Http, ASlowReaderIsCutOffAlone) {
  HttpLimits limits;
  limits.unsent_bytes = 1 << 20;
  std::atomic<bool> gone = false;
  TestServer server(
      [&](auto request, auto reply) {
        if (request->path != "/flood") return echo(request, reply);
        reply->begin(200, {});
        reply->on_gone([&] { gone = true; });
        std::thread([&gone, reply] {
          for (int i = 0; i < 4000 && !gone; ++i) {
            reply->write(std::string(16 << 10, 'f'));
            if (reply->unsent() > 900 << 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }).detach();
      },
      limits);
  Client slow(server.port());
  const int small = 4096;
  setsockopt(slow.descriptor(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  slow.get("/flood");
  Client other(server.port());
  for (int i = 0; i < 20; ++i) {
    other.get("/");
    ASSERT_EQ(other.read().status, 200);
  }
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

TEST(Http, TimeLimitsOfRequestsAndIdleConnections) {
  HttpLimits limits;
  limits.request_seconds = 1;
  limits.idle_seconds = 2;
  TestServer server(echo, limits);
  Client half(server.port());
  half.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(half.read().status, 408);
  Client idle(server.port());
  EXPECT_TRUE(idle.at_end());
}

TEST(Http, SilenceIsReportedUntilTheEnd) {
  HttpLimits limits;
  limits.silence_seconds = 1;
  TestServer server(
      [](auto, auto reply) {
        auto count = std::make_shared<int>(0);
        std::weak_ptr<HttpReply> weak = reply;
        reply->begin(200, {});
        reply->on_silence([count, reply = reply]() mutable {
          reply->write(": still here\n\n");
          if (++*count == 2) {
            reply->end();
            reply = nullptr;
          }
        });
      },
      limits);
  Client client(server.port());
  client.get("/");
  const HttpResponse r = client.read();
  EXPECT_EQ(r.body, ": still here\n\n: still here\n\n");
  EXPECT_TRUE(r.complete);
}

TEST(Http, HeaderValuesCannotSplitTheReply) {
  TestServer server([](auto, auto reply) { reply->send(200, {{"X-A", "one\r\nX-B: two"}}, ""); });
  Client client(server.port());
  client.get("/");
  const HttpResponse r = client.read();
  EXPECT_EQ(r.headers.at("x-a"), "oneX-B: two");
  EXPECT_EQ(r.headers.count("x-b"), 0u);
}

TEST(Http, APortInUseIsAUsageError) {
  TestServer server(echo);
  HttpOptions options;
  options.port = server.port();
  try {
    HttpServer second(std::move(options));
    FAIL() << "the port was opened twice";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(e.what()).find(std::to_string(server.port())), std::string::npos);
  }
}

TEST(Http, ASignalBeforeTheServerRunsIsNotLost) {
  HttpServer server({.port = 0});
  int caught = 0;
  server.catch_signals([&](int signal) {
    caught = signal;
    server.stop();
  });
  std::raise(SIGTERM);
  server.run();
  EXPECT_EQ(caught, SIGTERM);
}

TEST(Http, ManyConnectionsAtOnce) {
  TestServer server(echo);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 500; ++i) clients.push_back(std::make_unique<Client>(server.port()));
  for (auto& client : clients) client->get("/x");
  for (auto& client : clients) EXPECT_EQ(client->read().status, 200);
}

TEST(HttpText, ConstantTimeComparisonIsAComparison) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("key", "key"));
  EXPECT_FALSE(equal_in_constant_time("key", "kex"));
  EXPECT_FALSE(equal_in_constant_time("key", "key1"));
  EXPECT_FALSE(equal_in_constant_time("key", std::string_view("key\0", 4)));
  EXPECT_FALSE(equal_in_constant_time("", "k"));
}

}  // namespace
}  // namespace perigee::serve
