// One API request under way: its engine requests, the answers they grow into, and the reply. It lives on the
// delivery thread; everything that reaches it from elsewhere is posted there. It is cancelled wherever it is
// when the client leaves.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "serve/engine_port.h"
#include "serve/envelope.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/structured_output.h"
#include "serve/worker_pool.h"

namespace perigee::serve {

// What an exchange needs of the server.
struct ExchangeServices {
  EnginePort& engine;
  WorkerPool& delivery;  // one thread
  Metrics& metrics;
};

// What a route made of a request's body.
struct Plan {
  std::vector<Request> requests;    // one per prompt
  std::vector<AnswerText> answers;  // one per choice: prompt after prompt, branch after branch
  std::unique_ptr<Envelope> envelope;
  bool stream = false;
  ConstraintFault fault;              // asked when all answers are there
  Headers headers;                    // beside the content type
  std::vector<std::string> warnings;  // what the request asks for and does not get
  bool discard_tokens = false;        // max_tokens 0: only the prompt was asked about
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Clock = std::chrono::steady_clock;

  Exchange(ExchangeServices services, std::shared_ptr<HttpReply> reply);

  // Watches for the client's leaving, from the moment the request is there.
  void watch();
  bool gone() const { return gone_; }
  // On the delivery thread.
  void start(Plan plan);
  void refuse(int status, const std::string& message);
  // Ends what runs, with an error: the server stops.
  void abort(const std::string& why);

 private:
  struct Choice {
    AnswerText text;
    AnswerDelta held;  // streaming: tokens whose text is held back; else everything so far
    bool finished = false;
    Clock::time_point last_token;
  };

  void on_event(size_t prompt, Event event);
  void on_refused(const Error& error);
  void take(size_t prompt, const Event& event);
  void emit(size_t choice, AnswerDelta delta);
  void finish();
  void fail(int status, const std::string& message);
  void cancel();
  void begin_stream();
  void on_silence();

  ExchangeServices services_;
  std::shared_ptr<HttpReply> reply_;
  std::shared_ptr<Metrics::InFlight> in_flight_;
  std::atomic<bool> gone_ = false;

  Plan plan_;
  std::vector<Ticket> tickets_;
  std::vector<Choice> choices_;
  std::vector<int> branches_;  // per prompt
  std::vector<std::vector<GeneratedToken>> prompt_tokens_;
  std::vector<bool> prompt_counted_;
  size_t unfinished_ = 0;
  Usage usage_;
  bool begun_ = false, done_ = false;
  Clock::time_point start_ = Clock::now(), submitted_, first_token_;
};

}  // namespace perigee::serve
