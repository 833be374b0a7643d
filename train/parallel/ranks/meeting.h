// What all ranks that were started share, in whatever groups they are. Not for users.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "train/parallel/ranks/launch.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/ranks/roll_call.h"

namespace plimsoll::train {

/// Another rank has ended the round: nothing of it can go on.
class RoundBroken : public std::runtime_error {
 public:
  RoundBroken() : std::runtime_error("another rank has ended the round") {}
};

/// This process's side of it. Its groups are made anew in each round, which is what lies between
/// one Ranks::Try that did not go well and the next.
class Meeting : public std::enable_shared_from_this<Meeting> {
 public:
  Meeting(const Launch& launch, const RanksOptions& options);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Returns when all have come. Before anything else, and not in the constructor: a rank that came
  /// and found others missing must still leave.
  void Meet();
  const Launch& launch() const { return launch_; }
  RollCall& roll_call() { return *roll_call_; }
  /// The time that something in a group may take, so that the error comes within the limit.
  std::chrono::milliseconds limit() const;

  /// Returns when these ranks are connected; `rank` is this one's place among them.
  c10::intrusive_ptr<c10d::ProcessGroup> NewGroup(const std::vector<int>& members, int rank);
  /// As Ranks::OnBreak.
  std::shared_ptr<void> OnBreak(std::function<void()> let_go);

  /// Throws, if the error came from the transport: RoundBroken in a Try that another rank has
  /// ended, else a RankError.
  void Explain(const std::exception& error);

  void BeginTry() { trying_ = true; }
  /// It went well.
  void EndTry() { trying_ = all_have_left_ = false; }
  /// It did not: nothing goes on. Returns when all have ended it: those that ran out of memory. For
  /// an error of this rank's own at once, since there will be no next round.
  std::vector<int> EndRound(RollCall::End end, const std::string& text);
  /// All ranks have left the last Try, as something that each waited for has shown. Before that,
  /// one that gives up the next would break off what others still do in the last.
  bool all_have_left() const { return all_have_left_; }
  void NoteThatAllHaveLeft() { all_have_left_ = true; }

  /// One within the other.
  void BeginRehearsal() { ++rehearsals_; }
  void EndRehearsal() { --rehearsals_; }
  bool rehearsing() const { return rehearsals_ > 0; }

 private:
  c10::intrusive_ptr<c10d::PrefixStore> Connect() const;
  /// A group must find those of the same members only, and not what an earlier one left.
  std::string PrefixFor(const std::vector<int>& members);

  Launch launch_;
  RanksOptions options_;
  std::string prefix_;
  std::unique_ptr<RollCall> roll_call_;
  /// Of all groups: each connection is looked up by name on the other side, which may take long.
  c10::intrusive_ptr<c10d::Store> group_store_;
  /// Counts the times that a Try did not go well.
  int round_ = 0;
  bool trying_ = false;
  bool all_have_left_ = true;
  int rehearsals_ = 0;
  bool first_group_ = true;
  std::list<std::function<void()>> to_let_go_;
  std::map<std::vector<int>, int> groups_made_;
};

}  // namespace plimsoll::train
