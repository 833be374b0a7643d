// Samples the host's memory while a job runs: a thread of `plimsoll run` looks at the job's
// processes once a second, and notes how each ended as far as it can be seen from outside.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "launch/child.h"
#include "launch/run_folder.h"

namespace plimsoll {

class HostSampler {
 public:
  /// Where the file cannot be made, nothing is sampled.
  explicit HostSampler(const RunFolder& folder);
  ~HostSampler();
  HostSampler(const HostSampler&) = delete;
  HostSampler& operator=(const HostSampler&) = delete;

  /// The job's first process is this one: makes the file, and begins.
  void Begin(std::int64_t child);
  /// It has ended so: takes what can still be seen, and writes the last line.
  void End(const ChildEnd& end);

 private:
  class Work;

  const RunFolder& folder_;
  std::unique_ptr<Work> work_;
};

}  // namespace plimsoll
