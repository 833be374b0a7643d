#include "train/parallel/roll_call.h"

#include <algorithm>
#include <sstream>

namespace plimsoll::train {
namespace {

using Clock = std::chrono::steady_clock;

std::string KeyOf(int rank) { return "roll call/" + std::to_string(rank); }
const std::string kVerdict = "roll call/verdict";

std::vector<std::uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// "rank 2", "ranks 1, 2 and 3".
std::string Ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   std::chrono::milliseconds interval)
    : store_(std::move(store)), rank_(rank), size_(size), interval_(interval) {
  Say(State::kHere);
  thread_ = std::jthread([this](const std::stop_token& stop) { Beat(stop); });
}

RollCall::~RollCall() { Leave(); }

void RollCall::Leave() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  try {
    Say(State::kLeft);
  } catch (const std::exception&) {
    // Whoever kept the store has left before.
  }
}

void RollCall::Beat(const std::stop_token& stop) {
  try {
    while (!stop.stop_requested()) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, stop, interval_, [&] { return news_; });
        news_ = false;
      }
      if (!stop.stop_requested()) Say(State::kHere);
    }
  } catch (const std::exception&) {
    // The store is gone: then nobody can be told, and the next collective fails.
  }
}

void RollCall::Say(State state) {
  std::ostringstream text;
  {
    const std::lock_guard lock(mutex_);
    text << beat_++ << ' ' << calls_ << ' ' << static_cast<char>(state) << ' ' << doing_;
  }
  store_->set(KeyOf(rank_), Bytes(text.str()));
}

void RollCall::Doing(std::string what) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(what);
  news_ = true;
  changed_.notify_all();
}

void RollCall::CountCall() {
  const std::lock_guard lock(mutex_);
  ++calls_;
  news_ = true;
  changed_.notify_all();
}

void RollCall::Meet(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  std::vector<int> missing(size_);
  for (int i = 0; i < size_; ++i) missing[i] = i;
  constexpr std::chrono::milliseconds kPause{10};
  while (true) {
    std::erase_if(missing, [&](int rank) { return store_->check({KeyOf(rank)}); });
    if (missing.empty()) return;
    if (Clock::now() >= end) break;
    std::this_thread::sleep_for(kPause);
  }
  std::ostringstream text;
  text << "rank " << rank_ << " of " << size_ << ": " << Ranks(missing) << " did not come within "
       << std::chrono::duration<double>(limit).count() << " s.";
  throw RankError(text.str());
}

RollCall::Answer RollCall::Ask(int rank) {
  const std::vector<std::uint8_t> bytes = store_->get(KeyOf(rank));
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  Answer answer;
  char state = 0;
  text >> answer.beat >> answer.calls >> state;
  answer.state = static_cast<State>(state);
  std::getline(text >> std::ws, answer.doing);
  return answer;
}

std::vector<RollCall::Answer> RollCall::AskAll() {
  std::vector<Answer> answers;
  for (int rank = 0; rank < size_; ++rank) answers.push_back(Ask(rank));
  return answers;
}

std::string RollCall::WhoIsMissing() {
  try {
    if (!store_->check({kVerdict})) {
      // Whoever is first decides for all, so that they do not blame one another.
      const std::string verdict = Judge();
      store_->compareSet(kVerdict, {}, Bytes(verdict));
    }
    const std::vector<std::uint8_t> verdict = store_->get(kVerdict);
    return {verdict.begin(), verdict.end()};
  } catch (const std::exception&) {
    return "whoever keeps the store of all ranks (rank 0, unless the launcher does) does not "
           "answer";
  }
}

std::string RollCall::Judge() {
  const std::vector<Answer> before = AskAll();
  std::this_thread::sleep_for(2 * interval_ + interval_ / 2);
  const std::vector<Answer> now = AskAll();
  for (int rank = 0; rank < size_; ++rank) {
    if (now[rank].state == State::kLeft) {
      return "rank " + std::to_string(rank) + " has left; it was at: " + now[rank].doing;
    }
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (now[rank].beat == before[rank].beat) {
      return "rank " + std::to_string(rank) +
             " does not answer any more; it was at: " + now[rank].doing;
    }
  }
  return Behind(now);
}

std::string RollCall::Behind(const std::vector<Answer>& answers) const {
  const auto by_calls = [](const Answer& a, const Answer& b) { return a.calls < b.calls; };
  const auto [least, most] = std::minmax_element(answers.begin(), answers.end(), by_calls);
  if (least->calls == most->calls) return "every rank still answers, and none is behind";
  std::vector<int> behind;
  for (int rank = 0; rank < size_; ++rank) {
    if (answers[rank].calls == least->calls) behind.push_back(rank);
  }
  return Ranks(behind) + (behind.size() == 1 ? " is" : " are") +
         " behind the others, at: " + least->doing;
}

void RollCall::AwaitOthersLeaving(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  const auto all_left = [&] {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && Ask(rank).state != State::kLeft) return false;
    }
    return true;
  };
  constexpr std::chrono::milliseconds kPause{5};
  while (!all_left() && Clock::now() < end) std::this_thread::sleep_for(kPause);
}

}  // namespace plimsoll::train
