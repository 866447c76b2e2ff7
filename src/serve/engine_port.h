// What the server needs of an engine: submissions and cancellations from any thread, events back on the
// engine's. EngineThread is the one of the product; tests put a scripted one in its place.
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace perigee::serve {

using Ticket = uint64_t;

// Who holds the cache's rows.
struct CacheRows {
  int64_t free = 0;
  int64_t requests = 0, prefixes = 0;  // held by running requests alone, by the prefix tree alone
  int64_t shared = 0;                  // by both
  int64_t checkpoints = 0;             // in the tree
  int64_t checkpoint_rows = 0;         // of the tree's rows, those that hold states and not tokens
  int64_t evicted = 0;                 // rows that the tree has given up so far
};

class EnginePort {
 public:
  // Both run on the engine's thread and must be quick. After an event that finishes the last branch, or a
  // refusal, neither runs again for that ticket.
  struct Listener {
    std::function<void(Event&&)> on_event;
    std::function<void(const Error&)> on_refused;
  };

  virtual ~EnginePort() = default;
  virtual Ticket submit(Request request, Listener listener) = 0;
  // Of one branch, or all of them.
  virtual void cancel(Ticket ticket, int branch = Engine::kAllBranches) = 0;
  virtual Engine::Stats stats() const = 0;   // of about now
  virtual CacheRows cache_rows() const = 0;  // of about a second ago, while requests run
  // While paused, requests are taken in and wait.
  virtual void pause() = 0;
  virtual void resume() = 0;
  // False when requests are running, and nothing was done.
  virtual bool reset_prefix_cache() = 0;
};

}  // namespace perigee::serve
