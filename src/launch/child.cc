#include "launch/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

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

/// What this process was asked to end by; 0 while it was not.
std::atomic<int> asked_to_end = 0;
static_assert(std::atomic<int>::is_always_lock_free);
constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP};

void NoteEnd(int number) {
  int none = 0;
  asked_to_end.compare_exchange_strong(none, number);
}

void PassOn(int number, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const pid_t child = child_to_signal;
  // What a key at the terminal sends, the child has got as well.
  if (child > 0 && info->si_code != SI_KERNEL) ::kill(child, number);
  errno = saved;
}

/// For a tied child: whatever would end this process asks the child to end in good order, and when
/// it comes again ends the child at once.
void EndChild(int number, siginfo_t* info, void* /*context*/) {
  NoteEnd(number);
  static std::atomic<int> times = 0;
  const int saved = errno;
  const pid_t child = child_to_signal;
  const bool again = times++ > 0;
  if (child > 0 && (again || info->si_code != SI_KERNEL)) ::kill(child, again ? SIGKILL : SIGINT);
  errno = saved;
}

/// While it lives, the signals go to the child. They are held back until it is known.
class Forwarding {
 public:
  explicit Forwarding(Bond bond) : tied_(bond == Bond::kTied) {
    sigset_t passed_on;
    sigemptyset(&passed_on);
    for (const int number : kPassedOn) sigaddset(&passed_on, number);
    ::sigprocmask(SIG_BLOCK, &passed_on, &mask_);
    struct sigaction action {};
    action.sa_sigaction = bond == Bond::kTied ? EndChild : PassOn;
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
    // Asked to end after the last look at that, and before signals were held back.
    if (tied_ && asked_to_end != 0 && child > 0) ::kill(child, SIGINT);
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  bool tied_ = false;
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

/// The signals of the new process, as they would be if the command had been typed.
void ResetSignals(const sigset_t& mask, Bond bond) {
  ::signal(SIGXFSZ, SIG_DFL);  // ignored here, so that a file that is too large is an error
  if (bond == Bond::kTied) ::signal(SIGINT, SIG_DFL);
  for (const int number : kPassedOn) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) ::signal(number, SIG_DFL);
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
}

/// Whether the new process ends with `parent`, which it does not if that is gone already.
bool TieTo([[maybe_unused]] pid_t parent) {
#ifdef __linux__
  return ::prctl(PR_SET_PDEATHSIG, SIGINT) == 0 && ::getppid() == parent;
#else
  return true;
#endif
}

/// What the parent reads from the pipe: nothing once the command runs, else errno.
int ReadRefusal(int from) {
  int reason = 0;
  ssize_t size = 0;
  do {
    size = ::read(from, &reason, sizeof reason);
  } while (size < 0 && errno == EINTR);
  return size == sizeof reason ? reason : 0;
}

/// 0, or errno. By fork rather than posix_spawn, which can tie nobody to its parent; between fork
/// and exec there are system calls only, since other threads may hold any lock.
int Spawn(std::vector<std::string> command, const std::vector<Variable>& more, const sigset_t& mask,
          Bond bond, pid_t& child) {
  std::vector<std::string> environment = Environment(more);
  const std::vector<char*> words = Pointers(command);
  std::vector<char*> variables = Pointers(environment);
  std::array<int, 2> refusal = {-1, -1};
  if (::pipe(refusal.data()) != 0) return errno;
  for (const int end : refusal) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  const pid_t parent = ::getpid();
  child = ::fork();
  if (child == 0) {
    ResetSignals(mask, bond);
    if (bond == Bond::kTied && !TieTo(parent)) ::_exit(1);
    environ = variables.data();
    ::execvp(words.front(), words.data());
    const int reason = errno;
    [[maybe_unused]] const ssize_t told = ::write(refusal[1], &reason, sizeof reason);
    ::_exit(127);
  }
  const int reason_of_fork = child < 0 ? errno : 0;
  ::close(refusal[1]);
  const int reason = child < 0 ? reason_of_fork : ReadRefusal(refusal[0]);
  ::close(refusal[0]);
  if (child > 0 && reason != 0) ::waitpid(child, nullptr, 0);
  return reason;
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

EndWatch::EndWatch() {
  static_assert(kEnding.size() == kSignals);
  asked_to_end = 0;
  struct sigaction action {};
  action.sa_handler = NoteEnd;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kEnding.size(); ++i) {
    ::sigaction(kEnding[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kEnding[i], &action, nullptr);
  }
}

EndWatch::~EndWatch() {
  for (std::size_t i = 0; i < kEnding.size(); ++i) {
    ::sigaction(kEnding[i], &before_[i], nullptr);
  }
}

std::optional<int> EndWatch::Asked() {
  const int number = asked_to_end;
  return number == 0 ? std::nullopt : std::optional(number);
}

ChildEnd RunChild(const std::vector<std::string>& command, const std::vector<Variable>& more,
                  Bond bond, const std::function<void(std::int64_t)>& started) {
  // Whoever ignores its children cannot wait for one.
  ::signal(SIGCHLD, SIG_DFL);
  Forwarding forwarding(bond);
  pid_t child = 0;
  if (const int reason = Spawn(command, more, forwarding.mask_before(), bond, child)) {
    return Refused(command.front(), reason);
  }
  forwarding.To(child);
  if (started) started(child);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR)
      return {.code = 126, .refused = Error{.message = "it cannot be waited for"}};
  }
  if (WIFSIGNALED(status)) return {.code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

}  // namespace plimsoll
