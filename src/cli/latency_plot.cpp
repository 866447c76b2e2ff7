#include "cli/latency_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace perigee::cli {

namespace {

constexpr double kWidth = 720, kHeight = 400, kLeft = 60, kRight = 20, kTop = 48, kBottom = 52;
constexpr const char* kColours[] = {"#1f77b4", "#d95f02", "#2ca02c", "#7b3294", "#666666"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&'   ? "&amp;"
           : c == '<' ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  return out;
}

// From milliseconds and shares to places.
struct Axes {
  double low, high;  // powers of ten, in ms
  double x(double ms) const {
    return kLeft + (kWidth - kLeft - kRight) * (std::log10(ms) - low) / (high - low);
  }
  static double y(double share) { return kHeight - kBottom - (kHeight - kTop - kBottom) * share; }
};

std::string line(double x1, double y1, double x2, double y2) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", x1,
                     y1, x2, y2);
}

std::string text(double x, double y, const std::string& anchor, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

}  // namespace

std::string latency_plot(const std::string& title, const std::vector<Latencies>& kinds) {
  constexpr double kLeast = 1e-3;  // ms: a logarithm needs one
  std::vector<Latencies> shown;
  double low = 1e9, high = kLeast;
  for (const Latencies& kind : kinds) {
    if (kind.seconds.empty()) continue;
    Latencies& one = shown.emplace_back(kind);
    for (double& value : one.seconds) value = std::max(value * 1000, kLeast);  // ms from here on
    std::sort(one.seconds.begin(), one.seconds.end());
    low = std::min(low, one.seconds.front());
    high = std::max(high, one.seconds.back());
  }
  const double first = shown.empty() ? 0 : std::floor(std::log10(low));
  const Axes axes{first, std::max(first + 1, shown.empty() ? 1 : std::ceil(std::log10(high)))};
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  out += text(kLeft, 20, "start", title);
  for (int power = static_cast<int>(axes.low); power <= static_cast<int>(axes.high); ++power) {
    const double x = axes.x(std::pow(10, power));
    out += line(x, Axes::y(0), x, Axes::y(1));
    out += text(x, kHeight - kBottom + 18, "middle", fmt::format("{:g}", std::pow(10, power)));
  }
  for (const double share : {0.0, 0.25, 0.5, 0.75, 0.9, 0.99}) {
    out += line(kLeft, Axes::y(share), kWidth - kRight, Axes::y(share));
    out += text(kLeft - 6, Axes::y(share) + 4, "end", fmt::format("{:.0f} %", share * 100));
  }
  out += text((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", "milliseconds, at most");
  double legend = kLeft;
  for (size_t i = 0; i < shown.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    const std::vector<double>& values = shown[i].seconds;
    out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"", colour);
    // A few hundred points say as much as all.
    const size_t step = std::max<size_t>(1, values.size() / 400);
    for (size_t at = 0; at < values.size();
         at += at + step < values.size() || at + 1 == values.size() ? step : values.size() - 1 - at)
      out += fmt::format("{:.1f},{:.1f} ", axes.x(values[at]),
                         Axes::y(static_cast<double>(at + 1) / static_cast<double>(values.size())));
    out += "\"/>\n";
    const std::string name = fmt::format("{} ({})", shown[i].name, values.size());
    out += fmt::format("<text x=\"{:.1f}\" y=\"38\" fill=\"{}\">{}</text>\n", legend, colour, escaped(name));
    legend += 20 + 7 * static_cast<double>(name.size());
  }
  return out + "</svg>\n";
}

}  // namespace perigee::cli
