#include "train/parallel/ranks/meeting.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <sstream>
#include <string_view>
#include <utility>

#include "train/gradients/recovery.h"
#include "train/parallel/ranks/connections.h"

namespace plimsoll::train {
namespace {

/// Of each group that this process makes, so that none meets what the one before it left.
std::string NewPrefix(const Launch& launch) {
  static std::atomic<int> made = 0;
  return "plimsoll/" + launch.attempt + "/" + std::to_string(made++);
}

/// gloo's own errors are plain runtime errors, which only their text tells apart.
bool IsOfTransport(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return text.find("gloo") != std::string_view::npos || text.find("NCCL") != std::string_view::npos;
}

/// In gloo's words and NCCL's.
bool TimedOut(const std::exception& error) {
  const std::string_view text = error.what();
  for (const char* words : {"imed out", "imeout"}) {
    if (text.find(words) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

Meeting::Meeting(const Launch& launch, const RanksOptions& options)
    : launch_(launch), options_(options), prefix_(NewPrefix(launch)) {}

Meeting::~Meeting() {
  if (!roll_call_) return;
  roll_call_->Leave();
  // The store ends with the process that keeps it, and others may still want to ask who is missing.
  if (launch_.rank != 0 || launch_.store_is_kept) return;
  try {
    roll_call_->AwaitOthersLeaving(6 * IntervalOf(options_.time_limit));
  } catch (const std::exception&) {
    // Nobody can be asked.
  }
}

c10::intrusive_ptr<c10d::PrefixStore> Meeting::Connect() const {
  return c10::make_intrusive<c10d::PrefixStore>(
      prefix_, OpenStore(launch_, /*keep=*/false, options_.meeting_limit));
}

void Meeting::Meet() {
  const bool keep = launch_.rank == 0 && !launch_.store_is_kept;
  if (keep) KeepStore(launch_, options_.meeting_limit);
  const auto asked = Connect();
  RollCall::Place place{.rank = launch_.rank,
                        .size = launch_.size,
                        .interval = IntervalOf(options_.time_limit),
                        .keeper = "rank 0, which keeps the store of all ranks,",
                        .launcher = {}};
  if (launch_.store_is_kept) {
    place.keeper = "the launcher, which keeps the store of all ranks,";
    place.launcher = asked->getUnderlyingStore();
  }
  roll_call_ = std::make_unique<RollCall>(Connect(), asked, std::move(place));
  group_store_ = Connect();
  roll_call_->Meet(options_.meeting_limit);
}

std::chrono::milliseconds Meeting::limit() const { return CollectiveLimit(options_.time_limit); }

std::string Meeting::PrefixFor(const std::vector<int>& members) {
  std::ostringstream text;
  text << "round " << round_ << "/ranks";
  for (const int member : members) text << ' ' << member;
  text << '/' << groups_made_[members]++;
  return text.str();
}

c10::intrusive_ptr<c10d::ProcessGroup> Meeting::NewGroup(const std::vector<int>& members,
                                                         int rank) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>(PrefixFor(members), group_store_);
  const bool first = std::exchange(first_group_, false);
  return MakeGroup({store, rank, static_cast<int>(members.size()), first}, launch_, options_);
}

std::shared_ptr<void> Meeting::OnBreak(std::function<void()> let_go) {
  // Those that were made later hold what was made before them.
  to_let_go_.push_front(std::move(let_go));
  return {nullptr, [meeting = weak_from_this(), place = to_let_go_.begin()](void*) {
            if (const auto still = meeting.lock()) still->to_let_go_.erase(place);
          }};
}

void Meeting::Explain(const std::exception& error) {
  const bool explained = dynamic_cast<const RankError*>(&error) != nullptr ||
                         dynamic_cast<const RoundBroken*>(&error) != nullptr;
  if (explained || IsOutOfMemory(error) || !IsOfTransport(error)) return;
  if (trying_ && roll_call_->SomeoneEnded(round_)) throw RoundBroken();
  std::ostringstream text;
  text << "rank " << launch_.rank << " of " << launch_.size << ": "
       << roll_call_->WhoIsMissing(TimedOut(error)) << ". (" << FirstLine(error) << ")";
  throw RankError(text.str());
}

std::vector<int> Meeting::EndRound(RollCall::End end, const std::string& text) {
  trying_ = false;
  // Before the others notice that the connections break.
  roll_call_->EndRound(round_, end, text);
  for (const auto& let_go : to_let_go_) let_go();
  if (end == RollCall::End::kError) return {};
  std::vector<int> full = roll_call_->AwaitEndOfRound(round_, options_.time_limit);
  ++round_;
  return full;
}

}  // namespace plimsoll::train
