#include "cli/terminal/metrics_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

namespace plimsoll {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestFetch(3000);
constexpr std::size_t kLongestAnswer = std::size_t{4} << 20;

Error CannotReach(std::string_view why) {
  return {.message = fmt::format("cannot be reached: {}", why)};
}

/// A socket, closed with the object.
class Connection {
 public:
  explicit Connection(const addrinfo& to)
      : file_(::socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                       to.ai_protocol)) {}
  ~Connection() {
    if (file_ >= 0) ::close(file_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int file() const { return file_; }

  /// Until it can be read or written; false once it is too late.
  bool Await(short what, SteadyClock::time_point until) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - SteadyClock::now());
    pollfd waiting{.fd = file_, .events = what, .revents = 0};
    return left.count() > 0 && ::poll(&waiting, 1, static_cast<int>(left.count())) > 0;
  }

 private:
  int file_;
};

/// Why it could not be done; 0 where it is done.
int Connect(const Connection& connection, const addrinfo& to, SteadyClock::time_point until) {
  if (connection.file() < 0) return errno;
  if (::connect(connection.file(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!connection.Await(POLLOUT, until)) return ETIMEDOUT;
  int failure = 0;
  socklen_t size = sizeof failure;
  ::getsockopt(connection.file(), SOL_SOCKET, SO_ERROR, &failure, &size);
  return failure;
}

Result<std::string> Exchange(const Connection& connection, std::string_view request,
                             SteadyClock::time_point until) {
  while (!request.empty()) {
    if (!connection.Await(POLLOUT, until)) return CannotReach("it does not answer in time");
    const ssize_t sent = ::send(connection.file(), request.data(), request.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return CannotReach(std::strerror(errno));
    request.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
  }
  std::string answer;
  std::array<char, 16384> part{};
  while (answer.size() <= kLongestAnswer) {
    if (!connection.Await(POLLIN, until)) return CannotReach("it does not answer in time");
    const ssize_t size = ::recv(connection.file(), part.data(), part.size(), 0);
    if (size == 0) return answer;
    if (size < 0 && errno != EAGAIN && errno != EINTR) return CannotReach(std::strerror(errno));
    answer.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  }
  return Error{.message = "the answer is longer than any of plimsoll watch"};
}

bool IsPort(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// A name that stands in a request as it is.
bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c < 127; });
}

}  // namespace

Result<MetricsAddress> ParseMetricsAddress(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  const Error wrong{.message = fmt::format("'{}' is no address of metrics", text),
                    .hint = "write it as http://node1:9835/metrics"};
  std::string_view rest = text;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.find("://") != std::string_view::npos || !IsPlain(rest)) return wrong;
  MetricsAddress address;
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) address.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  // [::1]:9835
  const std::size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == std::string_view::npos) return wrong;
  if (const std::size_t colon = rest.find(':', bracket); colon != std::string_view::npos) {
    address.port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (bracket > 0) rest = rest.substr(1, bracket - 1);
  address.host = rest;
  if (address.host.empty() || !IsPort(address.port)) return wrong;
  return address;
}

Result<std::string> BodyOf(const std::string& answer) {
  const std::string_view line = std::string_view(answer).substr(0, answer.find_first_of("\r\n"));
  if (!line.starts_with("HTTP/1.")) return Error{.message = "what answers there is no HTTP"};
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || !line.substr(space + 1).starts_with("200")) {
    return Error{.message = fmt::format("the answer is '{}'", line.substr(0, 80))};
  }
  const std::size_t head = answer.find("\r\n\r\n");
  if (head == std::string::npos) return Error{.message = "the answer has no end of its head"};
  return answer.substr(head + 4);
}

Result<std::string> FetchMetrics(const MetricsAddress& address) {
  const auto until = SteadyClock::now() + kLongestFetch;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &wanted, &found);
  if (unknown != 0) return CannotReach(::gai_strerror(unknown));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  // HTTP/1.0: nothing comes in chunks, and the end of the answer is the end of the connection.
  const std::string request = fmt::format(
      "GET {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", address.path, address.Name());
  int failure = 0;
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const Connection connection(*to);
    failure = Connect(connection, *to, until);
    if (failure != 0) continue;
    const Result<std::string> answer = Exchange(connection, request, until);
    return answer ? BodyOf(*answer) : answer;
  }
  return CannotReach(std::strerror(failure));
}

}  // namespace plimsoll
