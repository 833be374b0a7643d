#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace plimsoll {
namespace {

/// Of several errors the one of the lowest index, whatever the order in which they came.
class FirstError {
 public:
  void Keep(std::size_t index) {
    const std::lock_guard lock(mutex_);
    if (error_ && index_ <= index) return;
    index_ = index;
    error_ = std::current_exception();
    failed_ = true;
  }
  bool failed() const { return failed_; }
  void Rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::size_t index_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& work,
                 unsigned threads) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  threads = static_cast<unsigned>(std::min<std::size_t>(threads, count));
  if (threads <= 1) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::size_t> next = 0;
  FirstError error;
  // An exception that leaves a thread ends the program; here it stops the loop. Whatever was taken
  // is done, and indices are taken in order, so that the error is the same one in each run.
  const auto run = [&] {
    while (!error.failed()) {
      const std::size_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        error.Keep(i);
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    try {
      for (unsigned t = 1; t < threads; ++t) pool.emplace_back(run);
    } catch (const std::system_error&) {
      // No more threads to be had: those that there are do the work.
    }
    run();
  }
  error.Rethrow();
}

}  // namespace plimsoll
