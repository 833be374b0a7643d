#include "job/child.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>

extern char** environ;

namespace plimsoll {
namespace {

constexpr std::array kPassedOn = {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2};

/// 0 while there is none. Read by the handler.
std::atomic<pid_t> child_to_signal = 0;
static_assert(std::atomic<pid_t>::is_always_lock_free);

void PassOn(int number, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const pid_t child = child_to_signal;
  // What a key at the terminal sends, the child has got as well.
  if (child > 0 && info->si_code != SI_KERNEL) ::kill(child, number);
  errno = saved;
}

/// While it lives, the signals go to the child. They are held back until it is known.
class Forwarding {
 public:
  Forwarding() {
    sigset_t passed_on;
    sigemptyset(&passed_on);
    for (const int number : kPassedOn) sigaddset(&passed_on, number);
    ::sigprocmask(SIG_BLOCK, &passed_on, &mask_);
    struct sigaction action {};
    action.sa_sigaction = PassOn;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < kPassedOn.size(); ++i) {
      ::sigaction(kPassedOn[i], nullptr, &before_[i]);
      // What is ignored here (nohup) stays ignored, here and there.
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(kPassedOn[i], &action, nullptr);
    }
  }
  ~Forwarding() {
    child_to_signal = 0;
    for (std::size_t i = 0; i < kPassedOn.size(); ++i) {
      ::sigaction(kPassedOn[i], &before_[i], nullptr);
    }
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }
  Forwarding(const Forwarding&) = delete;
  Forwarding& operator=(const Forwarding&) = delete;

  const sigset_t& mask_before() const { return mask_; }
  void To(pid_t child) {
    child_to_signal = child;
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  sigset_t mask_{};
  std::array<struct sigaction, kPassedOn.size()> before_{};
};

std::vector<std::string> Environment(const std::vector<Variable>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced =
        std::ranges::any_of(more, [&](const Variable& variable) { return variable.name == name; });
    if (!replaced) all.emplace_back(text);
  }
  for (const Variable& variable : more) all.push_back(variable.name + "=" + variable.value);
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// 0, or errno.
int Spawn(std::vector<std::string> command, const std::vector<Variable>& more, const sigset_t& mask,
          pid_t& child) {
  std::vector<std::string> environment = Environment(more);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int refused = ::posix_spawnp(&child, command.front().c_str(), nullptr, &attributes,
                                     Pointers(command).data(), Pointers(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  return refused;
}

ChildEnd Refused(const std::string& program, int reason) {
  const bool missing = reason == ENOENT;
  return {.code = missing ? 127 : 126,
          .refused =
              Error{.message = missing ? fmt::format("there is no program '{}'", program)
                                       : fmt::format("'{}' cannot be run: {}", program,
                                                     std::strerror(reason)),
                    .hint = missing ? "give the command as you type it without plimsoll run" : ""}};
}

}  // namespace

ChildEnd RunChild(const std::vector<std::string>& command, const std::vector<Variable>& more) {
  // Whoever ignores its children cannot wait for one.
  ::signal(SIGCHLD, SIG_DFL);
  Forwarding forwarding;
  pid_t child = 0;
  if (const int reason = Spawn(command, more, forwarding.mask_before(), child)) {
    return Refused(command.front(), reason);
  }
  forwarding.To(child);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      return {.code = 126, .refused = Error{.message = "it cannot be waited for"}};
  }
  if (WIFSIGNALED(status)) return {.code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

}  // namespace plimsoll
