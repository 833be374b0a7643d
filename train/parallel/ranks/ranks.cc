#include "train/parallel/ranks/ranks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "train/budget/host_memory.h"
#include "train/gradients/recovery.h"
#include "train/parallel/ranks/begun_work.h"
#include "train/parallel/ranks/connections.h"
#include "train/parallel/ranks/meeting.h"

namespace plimsoll::train {

Ranks::Ranks() { launch_.local_rank = 0, launch_.local_size = 1; }

Ranks::Ranks(const Launch& launch, const RanksOptions& options) : launch_(launch) {
  TORCH_CHECK(launch.size >= 1, "there cannot be ", launch.size, " ranks.");
  TORCH_CHECK(launch.rank >= 0 && launch.rank < launch.size, "there is no rank ", launch.rank,
              " of ", launch.size, ".");
  constexpr std::chrono::milliseconds kLeastLimit{100};
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
    : launch_(meeting->launch()), meeting_(std::move(meeting)), members_(std::move(members)) {
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
  if (meeting_ && of_all_) meeting_->roll_call().Leave();
  group_.reset();
}

const c10::intrusive_ptr<c10d::ProcessGroup>& Ranks::group() {
  if (!group_ && !alone()) {
    Guard([&] {
      const Waiting waiting(*this);
      group_ = meeting_->NewGroup(members_, rank());
    });
  }
  return group_;
}

std::shared_ptr<void> Ranks::OnBreak(std::function<void()> let_go) {
  return meeting_ ? meeting_->OnBreak(std::move(let_go)) : nullptr;
}

void Ranks::Doing(std::string what) {
  if (meeting_) meeting_->roll_call().Doing(std::move(what));
}

Ranks::Waiting::Waiting(Ranks& ranks) : meeting_(ranks.meeting_) {
  if (meeting_) meeting_->roll_call().Waits(true);
}

Ranks::Waiting::~Waiting() {
  if (meeting_) meeting_->roll_call().Waits(false);
}

std::chrono::milliseconds Ranks::Waiting::limit() const { return meeting_->limit(); }

Ranks::Rehearsal::Rehearsal(Ranks& ranks) : meeting_(ranks.meeting_) {
  if (meeting_) meeting_->BeginRehearsal();
}

Ranks::Rehearsal::~Rehearsal() {
  if (meeting_) meeting_->EndRehearsal();
}

bool Ranks::rehearsing() const { return meeting_ && meeting_->rehearsing(); }

void Ranks::Explain(const std::exception& error) {
  if (meeting_) meeting_->Explain(error);
}

std::vector<int> Ranks::Try(const std::function<void()>& function) {
  TORCH_CHECK(size() == launch_.size, "only all ranks together can try something.");
  if (meeting_ && !meeting_->all_have_left()) Barrier();
  if (meeting_) meeting_->BeginTry();
  try {
    function();
    // Nobody goes on before all have come to the end.
    Barrier();
    if (meeting_) meeting_->EndTry();
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
  const std::vector<int> full = meeting_->EndRound(end, text);
  if (end == RollCall::End::kError) return {};
  // Now, while all are here: later one might stop for good before it comes to connect.
  group();
  meeting_->NoteThatAllHaveLeft();
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
  if (!silent() && size() == launch_.size && tensor.is_cpu()) meeting_->NoteThatAllHaveLeft();
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

void Ranks::Gather(at::Tensor& whole, const at::Tensor& part) {
  BegunWork::Gather(whole, part, *this).Wait();
}

void Ranks::SumParts(at::Tensor& part, const at::Tensor& whole) {
  BegunWork::SumParts(part, whole, *this).Wait();
}

void Ranks::Barrier() {
  Together([&] { return group_->barrier(); });
}

}  // namespace plimsoll::train
