#include "cli/terminal/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/printable.h"

namespace plimsoll {

using SteadyClock = std::chrono::steady_clock;

struct Progress::Task {
  std::string what;
  std::size_t total = 0;
  std::size_t done = 0;
  SteadyClock::time_point started = SteadyClock::now();
};

namespace {

/// Shorter work shows nothing.
constexpr auto kBeforeFirstBar = std::chrono::milliseconds(500);
constexpr auto kTick = std::chrono::milliseconds(200);

std::size_t TerminalWidth() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

/// The line itself, drawn by a thread of its own while there are tasks.
class ProgressLine {
 public:
  static ProgressLine& Instance() {
    static ProgressLine line;
    return line;
  }

  void Add(Progress::Task* task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
    if (silent_ || drawer_.joinable() || ::isatty(STDERR_FILENO) != 1) return;
    drawer_ = std::thread([this] { Draw(); });
  }

  void Remove(Progress::Task* task) {
    std::thread done;
    {
      const std::lock_guard lock(mutex_);
      std::erase(tasks_, task);
      if (!tasks_.empty() || !drawer_.joinable()) return;
      done = std::move(drawer_);
    }
    changed_.notify_all();
    done.join();
  }

  /// Changes a task between two looks at it.
  template <typename Change>
  void Update(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
  }

  void Hide() {
    const std::lock_guard lock(mutex_);
    Erase();
  }

  bool IsSilent() {
    const std::lock_guard lock(mutex_);
    return silent_;
  }

  void Silence(bool silent) {
    const std::lock_guard lock(mutex_);
    silent_ = silent;
  }

 private:
  void Draw() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kTick, [this] { return tasks_.empty(); })) {
      const Progress::Task& task = *tasks_.back();
      const auto elapsed = SteadyClock::now() - task.started;
      if (elapsed < kBeforeFirstBar) continue;
      std::string text = Printable(task.what);
      if (task.total > 1) text += fmt::format(" {}/{}", task.done, task.total);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(elapsed).count();
      if (seconds > 0) text += fmt::format(", {} s", seconds);
      // A line that is wider than the terminal could not be taken away again.
      text.resize(std::min(text.size(), TerminalWidth() - 1));
      fmt::print(stderr, "\r{}\033[K", text);
      std::fflush(stderr);
      shown_ = true;
    }
    Erase();
  }

  void Erase() {
    if (!shown_) return;
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
    shown_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Progress::Task*> tasks_;
  std::thread drawer_;
  bool shown_ = false;
  bool silent_ = false;
};

Progress::Progress(std::string what, std::size_t total)
    : task_(new Task{.what = std::move(what), .total = total}) {
  ProgressLine::Instance().Add(task_.get());
}

Progress::~Progress() { ProgressLine::Instance().Remove(task_.get()); }

void Progress::Advance() {
  ProgressLine::Instance().Update([this] { ++task_->done; });
}

void Progress::Next(std::string what, std::size_t total) {
  ProgressLine::Instance().Update(
      [&] { *task_ = {.what = std::move(what), .total = total, .started = task_->started}; });
}

void Progress::Hide() { ProgressLine::Instance().Hide(); }

void Progress::Silence(bool silent) { ProgressLine::Instance().Silence(silent); }

bool Progress::IsSilent() { return ProgressLine::Instance().IsSilent(); }

}  // namespace plimsoll
