#include "cli/metrics_server.h"

#include <gtest/gtest.h>

#include "cli/screen.h"

namespace plimsoll::metrics_server_test {
namespace {

std::string StatusOf(const std::string& request) {
  const std::string answer = AnswerTo(request, "x 1\n");
  return answer.substr(9, 3);
}

TEST(MetricsServer, AnswersOneQuestionOnly) {
  EXPECT_TRUE(AnswerTo("GET /metrics HTTP/1.1\r\n\r\n", "x 1\n").ends_with("\r\n\r\nx 1\n"));
  EXPECT_EQ(StatusOf("GET /metrics HTTP/1.1\r\nHost: localhost:9835\r\n\r\n"), "200");
  EXPECT_EQ(StatusOf("GET /metrics?a=b HTTP/1.0\r\n\r\n"), "200");
  EXPECT_EQ(StatusOf("GET /metrics/../etc HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(StatusOf("POST /metrics HTTP/1.1\r\n\r\n"), "405");
  EXPECT_EQ(StatusOf("\r\n\r\n"), "400");
  EXPECT_EQ(StatusOf("GET /metrics\r\n\r\n"), "400");
}

TEST(MetricsServer, APageThatTookThisAddressGetsNothing) {
  EXPECT_EQ(StatusOf("GET /metrics HTTP/1.1\r\nhost:127.0.0.1\r\n\r\n"), "200");
  EXPECT_EQ(StatusOf("GET /metrics HTTP/1.1\r\nHost: evil.example:9835\r\n\r\n"), "403");
  EXPECT_EQ(StatusOf("GET /metrics HTTP/1.1\r\nHOST: localhost.evil.example\r\n\r\n"), "403");
  EXPECT_EQ(StatusOf("GET /metrics HTTP/1.1\r\nHost:\r\n\r\n"), "403");
}

TEST(Screen, WhatDoesNotFitIsCounted) {
  EXPECT_EQ(FirstLines("a\nb\nc\n", 3), "a\nb\nc\n");
  EXPECT_EQ(FirstLines("a\nb\nc\n", 2), "a\n(2 more lines: a taller window shows them)\n");
}

}  // namespace
}  // namespace plimsoll::metrics_server_test
