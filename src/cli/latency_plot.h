// Latencies as a picture: for each kind of them, the share of values up to every time, on a logarithmic axis.
#pragma once

#include <string>
#include <vector>

namespace perigee::cli {

struct Latencies {
  std::string name;
  std::vector<double> seconds;
};

// An SVG document. Kinds without values are left out.
std::string latency_plot(const std::string& title, const std::vector<Latencies>& kinds);

}  // namespace perigee::cli
