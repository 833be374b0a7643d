// What the machine and the control group of a job have of the host's memory.
#pragma once

#include <optional>
#include <string>

#include "base/bytes.h"
#include "launch/proc_files.h"
#include "timeline/host_record.h"

namespace plimsoll {

/// The machine, and the control group that this process and the job are in. Version 1 and 2; the
/// limit and what is used are of the group above it, or of it, whose limit is the tightest.
class HostLimits {
 public:
  explicit HostLimits(HostPlaces places = {});

  /// What stays as it is while a job runs.
  void Describe(HostRecord& record) const;
  /// What is used now; `held` is left alone.
  void Measure(HostSample& sample) const;
  OomKills Kills() const;

 private:
  void FindGroup();
  void TakeLimits(const std::string& mount, const std::string& path);

  HostPlaces places_;
  std::optional<HostGroup> group_;
  /// Of the control group itself: it counts who was killed in it.
  std::string own_;
  /// Of the one with the limit.
  std::string limited_;
  bool version_2_ = false;
};

}  // namespace plimsoll
