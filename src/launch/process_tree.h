// The processes of a job: the command that was started and everything that comes of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/live.h"
#include "launch/proc_files.h"
#include "timeline/host_record.h"

namespace plimsoll {

/// A process of the tree, and what it held when it was last looked at.
struct TreeProcess {
  HostProcess process;
  HostShare share;
  /// The words that it was started with, as the kernel has them.
  std::string words = {};
  /// The kernel's name of it, which a worker changes once it runs.
  std::string name = {};
  /// Which rank its environment says that it is, as it was when it began.
  std::optional<int> told_rank = {};
  /// When asking for `proportional` may be due again, in seconds of a steady clock.
  double ask_again = 0;
  /// What is known of it has changed since it was told.
  bool news = true;
};

/// Follows the tree from look to look. One that loses its parent stays in it.
class ProcessTree {
 public:
  ProcessTree(std::int64_t root, HostPlaces places) : root_(root), places_(std::move(places)) {}

  /// Those that are alive, and what they hold. `now` is of a steady clock; without it no
  /// proportional sizes are asked for.
  void Look(const std::vector<LiveProcess>& reports, std::optional<double> now);

  std::map<std::int64_t, TreeProcess>& processes() { return processes_; }

 private:
  std::vector<std::int64_t> Listed() const;
  void Find(const std::vector<std::int64_t>& listed);
  bool Refresh(std::int64_t pid, TreeProcess& known);
  void Recognise(TreeProcess& known);
  void AskProportional(TreeProcess& known, double now);
  int LowestFree(std::int64_t parent, std::int64_t besides) const;
  std::string FileOf(std::int64_t pid, const char* name) const;

  std::int64_t root_;
  HostPlaces places_;
  std::map<std::int64_t, TreeProcess> processes_;
  /// Seen, and of somebody else. Numbers come again, so that it is forgotten from time to time.
  std::set<std::int64_t> strangers_;
  std::map<std::int64_t, int> reported_ranks_;
  std::int64_t looks_ = 0;
};

}  // namespace plimsoll
