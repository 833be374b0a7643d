// Who is still there: each rank says so again and again, and what it is doing, in the store that
// all of them see. So an error can name the rank that the others wait for.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace plimsoll::train {

/// Something went wrong between ranks. One sentence, which says whose it is and names the rank that
/// is at fault.
class RankError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// For a launcher that keeps the store: one of its ranks has ended, as the words say ("rank 1 was
/// killed"). Ranks that have not met yet would wait for it in vain.
void TellThatRankEnded(c10d::Store& store, const std::string& words);
/// What a launcher has told so, once it has.
std::optional<std::string> RankThatEnded(c10d::Store& store);

class RollCall {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
    /// Between two signs of life.
    std::chrono::milliseconds interval;
    /// Whoever keeps the store, in words.
    std::string keeper;
    /// The way to the same store on which a launcher tells of ranks that ended. Null where none
    /// does.
    c10::intrusive_ptr<c10d::Store> launcher;
  };

  /// Two ways to the same store, each used by nothing else: it answers one question after the
  /// other, and if it does not, this rank must still be able to say something.
  RollCall(c10::intrusive_ptr<c10d::Store> said, c10::intrusive_ptr<c10d::Store> asked,
           Place place);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// Returns when all ranks are there. Throws RankError with those that are not in time.
  void Meet(std::chrono::milliseconds limit);
  /// What this rank does from now on, in a few words: "backward of step 3".
  void Doing(std::string what);
  /// This rank waits for others from now on, or no more; one within the other. Who does not, while
  /// others do, keeps them waiting.
  void Waits(bool waits);
  /// About who keeps this rank waiting, the same words on every rank that asks. Takes up to six
  /// intervals. `waited`: it did so until its time was up; else a connection of it broke.
  std::string WhoIsMissing(bool waited);

  /// Some of what ranks do together is in rounds, numbered from 0, which all of them end. How a
  /// rank's ended, if not well.
  enum class End { kOutOfMemory, kBroken, kError };
  void EndRound(int round, End end, const std::string& text);
  /// Whether some rank has.
  bool SomeoneEnded(int round);
  /// Returns when all have: those that ran out of memory. Throws RankError if one had an error, or
  /// does not come in time.
  std::vector<int> AwaitEndOfRound(int round, std::chrono::milliseconds limit);

  /// Says that this rank leaves, for those that go on without it. Nothing is said after it.
  void Leave();
  /// Returns when all others have left, or after the time. For the rank that keeps the store.
  void AwaitOthersLeaving(std::chrono::milliseconds limit);

 private:
  void Beat(const std::stop_token& stop);
  void Say(bool leaves);
  /// Its answer, or that the store gives none.
  std::string Asked(std::chrono::milliseconds limit,
                    const std::function<std::string()>& question) const;
  std::string StoreIsSilent() const;

  c10::intrusive_ptr<c10d::Store> said_;
  c10::intrusive_ptr<c10d::Store> asked_;
  Place place_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool news_ = false;
  std::int64_t beat_ = 0;
  int waits_ = 0;
  std::string doing_ = "starting";
  /// Last, so that it ends first.
  std::jthread thread_;
};

}  // namespace plimsoll::train
