// What no file of less than ten megabytes may take.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

namespace plimsoll::hostile {

/// Neither time nor memory may run away. The bounds are wide, since sanitizers take their share;
/// the time is the processor's, since other programs take theirs.
class Bounded {
 public:
  explicit Bounded(std::string what) : what_(std::move(what)) {}
  ~Bounded() {
    const rusage now = Usage();
    EXPECT_LT(Seconds(now) - Seconds(before_), 10.0) << what_;
    EXPECT_LT(now.ru_maxrss - before_.ru_maxrss, 1024 * 1024) << what_;
  }
  Bounded(const Bounded&) = delete;

 private:
  static rusage Usage() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage;
  }
  static double Seconds(const rusage& usage) {
    const auto seconds = [](const timeval& t) {
      return double(t.tv_sec) + double(t.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  std::string what_;
  rusage before_ = Usage();
};

}  // namespace plimsoll::hostile
