#include "cli/terminal/metrics_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace plimsoll {

/// A client that has not yet got its answer.
struct MetricsClient {
  int file = -1;
  std::chrono::steady_clock::time_point until;
  std::string request = {};
  /// What is left to be sent; empty while the request is read.
  std::string answer = {};
};

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestRequest = 8192;
/// For a whole request and its answer: a client that is slower is left.
constexpr std::chrono::milliseconds kPatience(2000);
constexpr std::size_t kMostClients = 64;

bool IsWhole(const std::string& head) {
  return head.find("\r\n\r\n") != std::string::npos || head.find("\n\n") != std::string::npos;
}

/// What has come of the request up to the empty line; a body is never read. False where no more
/// will come of it.
bool Receive(MetricsClient& client) {
  std::array<char, 1024> part{};
  const ssize_t size = ::recv(client.file, part.data(), part.size(), MSG_DONTWAIT);
  if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
  client.request.append(part.data(), static_cast<std::size_t>(size));
  return client.request.size() <= kLongestRequest;
}

/// False where all of it is sent, or nobody takes it.
bool Send(MetricsClient& client) {
  const ssize_t size =
      ::send(client.file, client.answer.data(), client.answer.size(), MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  client.answer.erase(0, static_cast<std::size_t>(size));
  return !client.answer.empty();
}

std::string Response(std::string_view status, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n{}",
      status, body.size(), body);
}

/// A page in a browser that gave its own name this address would still send that name.
bool HostIsLoopback(const std::string& request) {
  std::string low = request;
  std::ranges::transform(low, low.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t found = low.find("\nhost:");
  if (found == std::string::npos) return true;
  std::string_view host = std::string_view(low).substr(found + 6);
  host = host.substr(0, host.find_first_of("\r\n"));
  host.remove_prefix(std::min(host.find_first_not_of(" \t"), host.size()));
  host = host.substr(0, host.find_first_of(": \t"));
  return host == "localhost" || host == "127.0.0.1";
}

}  // namespace

std::string AnswerTo(const std::string& request, const std::string& metrics) {
  const std::string_view line = std::string_view(request).substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return Response("400 Bad Request", "this is no request of HTTP/1\n");
  }
  if (!HostIsLoopback(request)) {
    return Response("403 Forbidden", "ask for localhost or 127.0.0.1\n");
  }
  if (line.substr(0, first) != "GET") {
    return Response("405 Method Not Allowed", "only GET /metrics is answered\n");
  }
  const std::string_view target = line.substr(first + 1, second - first - 1);
  if (target != "/metrics" && !target.starts_with("/metrics?")) {
    return Response("404 Not Found", "the figures are at /metrics\n");
  }
  return Response("200 OK", metrics);
}

struct MetricsServer::State {
  explicit State(int listening) : listener(listening) {}
  ~State() {
    if (stop[1] >= 0) ::close(stop[1]);  // wakes the thread
    if (thread.joinable()) thread.join();
    if (stop[0] >= 0) ::close(stop[0]);
    if (listener >= 0) ::close(listener);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Serve() {
    // A client that is gone must not end the program.
    sigset_t broken_pipe;
    ::sigemptyset(&broken_pipe);
    ::sigaddset(&broken_pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (Await()) {
    }
    for (const MetricsClient& client : clients) ::close(client.file);
  }

  /// One look at everybody at once, so that nobody waits for a client that is silent. False when it
  /// is over.
  bool Await() {
    const short may_come = clients.size() < kMostClients ? POLLIN : 0;
    std::vector<pollfd> waiting = {{.fd = stop[0], .events = POLLIN, .revents = 0},
                                   {.fd = listener, .events = may_come, .revents = 0}};
    for (const MetricsClient& client : clients) {
      const short what = client.answer.empty() ? POLLIN : POLLOUT;
      waiting.push_back({.fd = client.file, .events = what, .revents = 0});
    }
    const int patience = clients.empty() ? -1 : static_cast<int>(kPatience.count() / 10);
    if (::poll(waiting.data(), waiting.size(), patience) < 0 && errno != EINTR) return false;
    if (waiting[0].revents != 0) return false;
    for (std::size_t i = clients.size(); i-- > 0;) {
      const bool ready = waiting[i + 2].revents != 0;
      if (Clock::now() < clients[i].until && (!ready || GoOn(clients[i]))) continue;
      ::close(clients[i].file);
      clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if ((waiting[1].revents & POLLIN) != 0) {
      const int file = ::accept(listener, nullptr, nullptr);
      if (file >= 0) clients.push_back({.file = file, .until = Clock::now() + kPatience});
    }
    return true;
  }

  /// False where the client is done with.
  bool GoOn(MetricsClient& client) {
    if (!client.answer.empty()) return Send(client);
    if (!Receive(client)) return false;
    if (!IsWhole(client.request)) return true;
    const std::lock_guard<std::mutex> hold(lock);
    client.answer = AnswerTo(client.request, metrics);
    return true;
  }

  int listener;
  int port = 0;
  std::array<int, 2> stop = {-1, -1};
  std::vector<MetricsClient> clients;  // of the thread alone
  std::mutex lock;
  std::string metrics;
  std::thread thread;
};

MetricsServer::MetricsServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
MetricsServer::~MetricsServer() = default;
MetricsServer::MetricsServer(MetricsServer&&) noexcept = default;

int MetricsServer::port() const { return state_->port; }

void MetricsServer::Set(std::string text) {
  const std::lock_guard<std::mutex> hold(state_->lock);
  state_->metrics = std::move(text);
}

Result<MetricsServer> MetricsServer::Start(int port) {
  auto state = std::make_unique<State>(::socket(AF_INET, SOCK_STREAM, 0));
  const int listener = state->listener;
  ::fcntl(listener, F_SETFL, O_NONBLOCK);  // a client may be gone before it is let in
  const int yes = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (listener < 0 || ::bind(listener, plain, size) != 0 || ::listen(listener, 64) != 0 ||
      ::getsockname(listener, plain, &size) != 0 || ::pipe(state->stop.data()) != 0) {
    return Error{.message = fmt::format("127.0.0.1:{} cannot be listened on: {}", port,
                                        std::strerror(errno)),
                 .hint = "give another port to --prometheus; 0 takes one that is free"};
  }
  state->port = ntohs(address.sin_port);
  state->thread = std::thread([own = state.get()] { own->Serve(); });
  return MetricsServer(std::move(state));
}

}  // namespace plimsoll
