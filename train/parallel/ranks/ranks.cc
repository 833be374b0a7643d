#include "train/parallel/ranks/ranks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "train/budget/host_memory.h"
#include "train/gradients/recovery.h"
#include "train/parallel/ranks/connections.h"

namespace plimsoll::train {
namespace {

using c10::intrusive_ptr;
using std::chrono::milliseconds;

/// Of each group that this process makes, so that none meets what the one before it left.
std::string NewPrefix(const Launch& launch) {
  static std::atomic<int> made = 0;
  return "plimsoll/" + launch.attempt + "/" + std::to_string(made++);
}

/// Named otherwise in newer releases.
template <class Group>
Ranks::Work GatherOf(Group& group, at::Tensor& whole, at::Tensor& part) {
  if constexpr (requires { group.all_gather_single(whole, part); }) {
    return group.all_gather_single(whole, part);
  } else {
    return group._allgather_base(whole, part);
  }
}

template <class Group>
Ranks::Work SumPartsOf(Group& group, at::Tensor& part, at::Tensor& whole) {
  if constexpr (requires { group.reduce_scatter_single(part, whole); }) {
    return group.reduce_scatter_single(part, whole);
  } else {
    return group._reduce_scatter_base(part, whole);
  }
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

/// Another rank has ended the round: nothing of it can go on.
class RoundBroken : public std::runtime_error {
 public:
  RoundBroken() : std::runtime_error("another rank has ended the round") {}
};

}  // namespace

/// What all ranks that were started share, in whatever groups they are.
struct Ranks::Meeting {
  Meeting(const Launch& one, const RanksOptions& all) : launch(one), options(all) {}
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  Launch launch;
  RanksOptions options;
  std::string prefix = NewPrefix(launch);
  std::unique_ptr<RollCall> roll_call;
  /// Of all groups: each connection is looked up by name on the other side, which may take long.
  intrusive_ptr<c10d::Store> group_store;
  /// Counts the times that Try did not go well. Each has groups of its own.
  int round = 0;
  bool trying = false;
  /// All ranks have left the last Try, as something that each waited for has shown. Before that,
  /// one that gives up the next would break off what others still do in the last.
  bool all_have_left = true;
  int rehearsals = 0;
  bool first_group = true;
  std::list<std::function<void()>> to_let_go;
  std::map<std::vector<int>, int> groups_made;

  intrusive_ptr<c10d::PrefixStore> Connect() const {
    return c10::make_intrusive<c10d::PrefixStore>(
        prefix, OpenStore(launch, /*keep=*/false, options.meeting_limit));
  }

  void Meet() {
    const bool keep = launch.rank == 0 && !launch.store_is_kept;
    if (keep) KeepStore(launch, options.meeting_limit);
    const auto asked = Connect();
    RollCall::Place place{.rank = launch.rank,
                          .size = launch.size,
                          .interval = IntervalOf(options.time_limit),
                          .keeper = "rank 0, which keeps the store of all ranks,",
                          .launcher = {}};
    if (launch.store_is_kept) {
      place.keeper = "the launcher, which keeps the store of all ranks,";
      place.launcher = asked->getUnderlyingStore();
    }
    roll_call = std::make_unique<RollCall>(Connect(), asked, std::move(place));
    group_store = Connect();
    roll_call->Meet(options.meeting_limit);
  }

  /// A group must find those of the same members only, and not what an earlier one left.
  std::string PrefixFor(const std::vector<int>& members) {
    std::ostringstream text;
    text << "round " << round << "/ranks";
    for (const int member : members) text << ' ' << member;
    text << '/' << groups_made[members]++;
    return text.str();
  }

  void LetGo() {
    for (const auto& let_go : to_let_go) let_go();
  }

  ~Meeting() {
    if (!roll_call) return;
    roll_call->Leave();
    // The store ends with the process that keeps it, and others may still want to ask who is
    // missing.
    if (launch.rank != 0 || launch.store_is_kept) return;
    try {
      roll_call->AwaitOthersLeaving(6 * IntervalOf(options.time_limit));
    } catch (const std::exception&) {
      // Nobody can be asked.
    }
  }
};

Ranks::Ranks() { launch_.local_rank = 0, launch_.local_size = 1; }

Ranks::Ranks(const Launch& launch, const RanksOptions& options) : launch_(launch) {
  TORCH_CHECK(launch.size >= 1, "there cannot be ", launch.size, " ranks.");
  TORCH_CHECK(launch.rank >= 0 && launch.rank < launch.size, "there is no rank ", launch.rank,
              " of ", launch.size, ".");
  constexpr milliseconds kLeastLimit{100};
  TORCH_CHECK(options.time_limit >= kLeastLimit, "a time limit of ", options.time_limit.count(),
              " ms is too short for ranks to answer.");
  alone_ = launch.size == 1 && !options.even_alone;
  if (alone_) return;
  of_all_ = true;
  members_.resize(static_cast<std::size_t>(launch.size));
  std::iota(members_.begin(), members_.end(), 0);
  rank_ = launch.rank;
  meeting_ = std::make_shared<Meeting>(launch, options);
  meeting_->Meet();
  on_break_ = OnBreak([this] { group_.reset(); });
  group();
}

Ranks::Ranks(std::shared_ptr<Meeting> meeting, std::vector<int> members)
    : launch_(meeting->launch), meeting_(std::move(meeting)), members_(std::move(members)) {
  const auto own = std::find(members_.begin(), members_.end(), launch_.rank);
  TORCH_CHECK(own != members_.end(), "rank ", launch_.rank, " is not in its own group of ranks.");
  rank_ = static_cast<int>(own - members_.begin());
  alone_ = members_.size() == 1 && launch_.size > 1;
  on_break_ = OnBreak([this] { group_.reset(); });
}

std::unique_ptr<Ranks> Ranks::Some(std::vector<int> members) const {
  std::set<int> different(members.begin(), members.end());
  TORCH_CHECK(different.size() == members.size() && !different.empty() && *different.begin() >= 0 &&
                  *different.rbegin() < launch_.size,
              "a group has ranks from 0 to ", launch_.size - 1, ", each once.");
  if (!meeting_) return std::make_unique<Ranks>();
  return std::unique_ptr<Ranks>(new Ranks(meeting_, std::move(members)));
}

Ranks::~Ranks() {
  on_break_.reset();
  // Before the others notice that its connections break.
  if (meeting_ && of_all_) meeting_->roll_call->Leave();
  group_.reset();
}

const intrusive_ptr<c10d::ProcessGroup>& Ranks::group() {
  if (!group_ && !alone()) {
    Guard([&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(meeting_->PrefixFor(members_),
                                                                meeting_->group_store);
      const Waiting waiting(*this);
      const bool first = std::exchange(meeting_->first_group, false);
      group_ = MakeGroup({store, rank(), size(), first}, launch_, meeting_->options);
    });
  }
  return group_;
}

std::shared_ptr<void> Ranks::OnBreak(std::function<void()> let_go) {
  if (!meeting_) return {};
  auto& list = meeting_->to_let_go;
  // Those that were made later hold what was made before them.
  list.push_front(std::move(let_go));
  return {nullptr, [meeting = std::weak_ptr(meeting_), place = list.begin()](void*) {
            if (const auto still = meeting.lock()) still->to_let_go.erase(place);
          }};
}

void Ranks::Doing(std::string what) {
  if (meeting_) meeting_->roll_call->Doing(std::move(what));
}

Ranks::Waiting::Waiting(Ranks& ranks) : meeting_(ranks.meeting_) {
  if (meeting_) meeting_->roll_call->Waits(true);
}

Ranks::Waiting::~Waiting() {
  if (meeting_) meeting_->roll_call->Waits(false);
}

Ranks::Rehearsal::Rehearsal(Ranks& ranks) : meeting_(ranks.meeting_) {
  if (meeting_) ++meeting_->rehearsals;
}

Ranks::Rehearsal::~Rehearsal() {
  if (meeting_) --meeting_->rehearsals;
}

bool Ranks::rehearsing() const { return meeting_ && meeting_->rehearsals > 0; }

void Ranks::Explain(const std::exception& error) {
  const bool explained = dynamic_cast<const RankError*>(&error) != nullptr ||
                         dynamic_cast<const RoundBroken*>(&error) != nullptr;
  if (!meeting_ || explained || IsOutOfMemory(error) || !IsOfTransport(error)) return;
  RollCall& roll_call = *meeting_->roll_call;
  if (meeting_->trying && roll_call.SomeoneEnded(meeting_->round)) throw RoundBroken();
  std::ostringstream text;
  text << "rank " << launch_.rank << " of " << launch_.size << ": "
       << roll_call.WhoIsMissing(TimedOut(error)) << ". (" << FirstLine(error) << ")";
  throw RankError(text.str());
}

std::vector<int> Ranks::Try(const std::function<void()>& function) {
  TORCH_CHECK(size() == launch_.size, "only all ranks together can try something.");
  if (meeting_ && !meeting_->all_have_left) Barrier();
  if (meeting_) meeting_->trying = true;
  try {
    function();
    // Nobody goes on before all have come to the end.
    Barrier();
    if (meeting_) meeting_->trying = meeting_->all_have_left = false;
    return {};
  } catch (const RankError&) {
    throw;
  } catch (const RoundBroken&) {
    return EndRound(RollCall::End::kBroken, "");
  } catch (const std::exception& error) {
    if (IsOutOfMemory(error)) return EndRound(RollCall::End::kOutOfMemory, FirstLine(error));
    EndRound(RollCall::End::kError, FirstLine(error));
    throw;
  } catch (...) {
    EndRound(RollCall::End::kError, "an error of its own kind");
    throw;
  }
}

/// What is thrown here is a RankError.
std::vector<int> Ranks::EndRound(RollCall::End end, const std::string& text) {
  if (!meeting_) return {0};
  meeting_->trying = false;
  RollCall& roll_call = *meeting_->roll_call;
  // Before the others notice that the connections break.
  roll_call.EndRound(meeting_->round, end, text);
  meeting_->LetGo();
  if (end == RollCall::End::kError) return {};
  const std::vector<int> full =
      roll_call.AwaitEndOfRound(meeting_->round, meeting_->options.time_limit);
  ++meeting_->round;
  // Now, while all are here: later one might stop for good before it comes to connect.
  group();
  meeting_->all_have_left = true;
  return full;
}

template <class Function>
void Ranks::Together(Function&& begin) {
  if (silent()) return;
  const Waiting waiting(*this);
  Guard([&] {
    group();
    begin()->wait();
  });
}

void Ranks::Sum(at::Tensor& tensor) {
  Together([&] {
    std::vector<at::Tensor> tensors{tensor};
    return group_->allreduce(tensors);
  });
  // Each has had its part in it. Of a sum on a GPU nobody has seen the end yet.
  if (!silent() && size() == launch_.size && tensor.is_cpu()) meeting_->all_have_left = true;
}

void Ranks::Least(at::Tensor& tensor) {
  Together([&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MIN;
    return group_->allreduce(tensors, options);
  });
}

double Ranks::Sum(double value) {
  at::Tensor sum = HostTensor({1}, at::kDouble, /*pinned=*/false);
  double& number = *sum.mutable_data_ptr<double>();
  number = value;
  Sum(sum);
  return number;
}

std::vector<std::string> Ranks::Tell(const std::string& text) {
  if (alone()) return {text};
  // Not from the budget: it is also for those that have nothing left.
  at::Tensor lengths = HostTensor({size()}, at::kLong, /*pinned=*/false).zero_();
  auto* const length = lengths.mutable_data_ptr<std::int64_t>();
  length[rank()] = static_cast<std::int64_t>(text.size());
  Sum(lengths);
  const std::int64_t longest =
      std::max<std::int64_t>(*std::max_element(length, length + size()), 1);
  // A sum with nothing of the others in each rank's place: a gather would take memory of its own.
  at::Tensor all = HostTensor({size() * longest}, at::kByte, /*pinned=*/false).zero_();
  std::ranges::copy(text, all.mutable_data_ptr<std::uint8_t>() + rank() * longest);
  Sum(all);
  std::vector<std::string> texts;
  for (int one = 0; one < size(); ++one) {
    const auto* const begin = all.const_data_ptr<std::uint8_t>() + one * longest;
    texts.emplace_back(begin, begin + length[one]);
  }
  return texts;
}

void Ranks::Broadcast(const std::vector<at::Tensor>& tensors, int from) {
  if (silent() || tensors.empty()) return;
  constexpr std::size_t kBytesAtOnce = std::size_t{250} << 20U;
  const Waiting waiting(*this);
  Guard([&] { c10d::broadcast_coalesced(group(), tensors, kBytesAtOnce, from); });
}

void Ranks::Gather(at::Tensor& whole, const at::Tensor& part) { Wait(BeginGather(whole, part)); }

void Ranks::SumParts(at::Tensor& part, const at::Tensor& whole) {
  Wait(BeginSumParts(part, whole));
}

Ranks::Work Ranks::BeginGather(at::Tensor& whole, const at::Tensor& part) {
  if (silent()) {
    at::Tensor places = whole.unflatten(0, {size(), whole.size(0) / size()});
    if (!whole.is_alias_of(part)) places.copy_(part.expand_as(places));
    return {};
  }
  at::Tensor given = part;
  return Guard([&] { return GatherOf(*group(), whole, given); });
}

Ranks::Work Ranks::BeginSumParts(at::Tensor& part, const at::Tensor& whole) {
  if (silent()) {
    const std::int64_t length = whole.size(0) / size();
    if (!part.is_alias_of(whole)) part.copy_(whole.narrow(0, rank() * length, length));
    return {};
  }
  at::Tensor given = whole;
  return Guard([&] { return SumPartsOf(*group(), part, given); });
}

Ranks::Work Ranks::BeginSend(const at::Tensor& tensor, int to, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  return Guard([&] { return group()->send(tensors, to, tag); });
}

Ranks::Work Ranks::BeginReceive(at::Tensor& tensor, int from, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  return Guard([&] { return group()->recv(tensors, from, tag); });
}

void Ranks::Wait(const Work& work) {
  if (!work) return;
  const Waiting waiting(*this);
  const c10d::OpType type = work->retrieveOpType();
  const bool message = type == c10d::OpType::SEND || type == c10d::OpType::RECV;
  // Gloo's messages do not know the group's limit.
  Guard(
      [&] { message ? work->wait(CollectiveLimit(meeting_->options.time_limit)) : work->wait(); });
}

void Ranks::Barrier() {
  Together([&] { return group_->barrier(); });
}

}  // namespace plimsoll::train
