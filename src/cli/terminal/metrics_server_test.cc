#include "cli/terminal/metrics_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "cli/terminal/screen.h"

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

/// A connection to the server; silent unless it is given something to say.
class Connection {
 public:
  explicit Connection(int port) : file_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(file_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Connection() { ::close(file_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::string Ask(const std::string& request) const {
    EXPECT_EQ(::send(file_, request.data(), request.size(), 0),
              static_cast<ssize_t>(request.size()));
    std::string answer(4096, '\0');
    const ssize_t size = ::recv(file_, answer.data(), answer.size(), 0);
    answer.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return answer;
  }

 private:
  int file_;
};

TEST(MetricsServer, SilentClientsDelayNobody) {
  Result<MetricsServer> server = MetricsServer::Start(0);
  ASSERT_TRUE(server);
  server->Set("x 1\n");
  std::vector<std::unique_ptr<Connection>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<Connection>(server->port()));
  // One after the other each would be waited for: 40 seconds, after which they are left anyway.
  EXPECT_TRUE(Connection(server->port()).Ask("GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
  EXPECT_TRUE(silent.back()->Ask("GET /metrics HTTP/1.1\r\n\r\n").ends_with("x 1\n"));
}

TEST(Screen, WhatDoesNotFitIsCounted) {
  EXPECT_EQ(FirstLines("a\nb\nc\n", 3), "a\nb\nc\n");
  EXPECT_EQ(FirstLines("a\nb\nc\n", 2), "a\n(2 more lines: a taller window shows them)\n");
}

}  // namespace
}  // namespace plimsoll::metrics_server_test
