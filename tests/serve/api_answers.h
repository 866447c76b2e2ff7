// What the tests of the API share: a scripted answer, a request, and reading replies.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "test_api.h"

namespace perigee::serve {

// An answer that thinks, then says "Zürich 東京".
inline const std::vector<std::string> kThought = {
    "a thought",   "<|close|>", "think",    "<|sep|>", "<|open|>",  "response", "<|sep|>",
    "Zürich 東京", "<|close|>", "response", "<|sep|>", "<|close|>", "message",  "<|sep|>"};

inline ScriptedEngine::Script say(const std::vector<std::string>& parts) {
  return [parts](const Request&, int) { return ScriptedEngine::Answer{answer_ids(test_model(), parts)}; };
}

inline std::string chat(const std::string& more = "") {
  return R"({"model":"tiny","messages":[{"role":"user","content":"Hi"}])" + more + "}";
}

inline boost::json::object object_of(const HttpResponse& r) {
  boost::system::error_code error;
  boost::json::value value = boost::json::parse(r.body, error);
  EXPECT_FALSE(error || !value.is_object()) << r.status << " " << r.body;
  return value.is_object() ? value.get_object() : boost::json::object();
}

inline std::string message_of(const HttpResponse& r) {
  const boost::json::object body = object_of(r);
  const boost::json::value* error = body.if_contains("error");
  return error ? std::string(error->at("message").as_string()) : "no error: " + r.body;
}

// The data of a stream, without the [DONE] that must end it.
inline std::vector<boost::json::object> events_of(const HttpResponse& r) {
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(r.complete);
  EXPECT_TRUE(r.body.ends_with("data: [DONE]\n\n"));
  std::vector<boost::json::object> out;
  for (size_t at = 0; at < r.body.size();) {
    const size_t end = r.body.find("\n\n", at);
    const std::string event = r.body.substr(at, end - at);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    if (event != "data: [DONE]") out.push_back(boost::json::parse(event.substr(6)).as_object());
    at = end + 2;
  }
  return out;
}

}  // namespace perigee::serve
