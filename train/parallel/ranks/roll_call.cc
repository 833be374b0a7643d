#include "train/parallel/ranks/roll_call.h"

#include <algorithm>
#include <future>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace plimsoll::train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string KeyOf(int rank) { return "roll call/" + std::to_string(rank); }
const std::string kVerdict = "roll call/verdict";
const std::string kEnded = "plimsoll launcher/ended";
constexpr std::string_view kErrorEnd = "error: ";
constexpr std::string_view kOutOfMemoryEnd = "out of memory: ";

std::vector<std::uint8_t> AsBytes(const std::string& text) { return {text.begin(), text.end()}; }

/// "rank 2", "ranks 1, 2 and 3".
std::string Names(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// What a rank last said.
struct Answer {
  std::int64_t beat = -1;
  bool waits = false;
  bool left = false;
  std::string doing;
};

/// Reads what ranks have said. A copy may outlive the roll call, where the store never answers.
struct Roll {
  c10::intrusive_ptr<c10d::Store> store;
  RollCall::Place place;

  Answer Ask(int rank) const {
    const std::vector<std::uint8_t> bytes = store->get(KeyOf(rank));
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    Answer answer;
    text >> answer.beat >> answer.waits >> answer.left;
    std::getline(text >> std::ws, answer.doing);
    return answer;
  }

  std::vector<Answer> AskAll() const {
    std::vector<Answer> answers;
    for (int rank = 0; rank < place.size; ++rank) answers.push_back(Ask(rank));
    return answers;
  }

  bool AllOthersLeft() const {
    for (int rank = 0; rank < place.size; ++rank) {
      // One that never came need not leave.
      if (rank != place.rank && store->check({KeyOf(rank)}) && !Ask(rank).left) return false;
    }
    return true;
  }

  /// Empty when all are there; else who is not, in words.
  std::string Await(milliseconds limit) const {
    const auto end = Clock::now() + limit;
    std::vector<int> missing(static_cast<std::size_t>(place.size));
    for (int rank = 0; rank < place.size; ++rank) missing[rank] = rank;
    constexpr milliseconds kPause{10};
    while (Clock::now() < end && !store->check({kVerdict})) {
      std::erase_if(missing, [&](int rank) { return store->check({KeyOf(rank)}); });
      if (missing.empty()) return "";
      const auto ended = place.launcher ? RankThatEnded(*place.launcher) : std::nullopt;
      if (ended) return Agree(*ended + " before all ranks had met");
      std::this_thread::sleep_for(kPause);
    }
    std::ostringstream text;
    text << Names(missing) << " did not come within "
         << std::chrono::duration<double>(limit).count() << " s";
    return Agree(text.str());
  }

  /// Whoever is first decides for all, so that they do not blame one another.
  std::string Agree(const std::string& verdict) const {
    store->compareSet(kVerdict, {}, AsBytes(verdict));
    const std::vector<std::uint8_t> agreed = store->get(kVerdict);
    return {agreed.begin(), agreed.end()};
  }

  std::string WhoIsMissing(bool waited) const {
    return Agree(store->check({kVerdict}) ? "" : Judge(waited));
  }

  std::string Judge(bool waited) const {
    const std::vector<Answer> before = AskAll();
    std::this_thread::sleep_for(2 * place.interval + place.interval / 2);
    std::vector<Answer> now = AskAll();
    const auto silent = [&](int rank) { return now[rank].beat == before[rank].beat; };
    bool all_there = waited;
    for (int rank = 0; rank < place.size; ++rank) all_there = all_there && !silent(rank);
    if (!all_there) {
      // Perhaps the machine is busy, or a rank about to leave.
      std::this_thread::sleep_for(2 * place.interval);
      now = AskAll();
    }
    for (int rank = 0; rank < place.size; ++rank) {
      if (now[rank].left) return Names({rank}) + " has left; it was at: " + now[rank].doing;
    }
    for (int rank = 0; rank < place.size; ++rank) {
      if (silent(rank)) {
        return Names({rank}) + " does not answer any more; it was at: " + now[rank].doing;
      }
    }
    if (waited) return Behind(now);
    return "every rank still answers, but a connection of " + Names({place.rank}) + " broke";
  }

  std::string Behind(const std::vector<Answer>& answers) const {
    std::vector<int> behind;
    for (int rank = 0; rank < place.size; ++rank) {
      if (!answers[rank].waits) behind.push_back(rank);
    }
    if (behind.empty()) {
      return "every rank still answers, but what " + Names({place.rank}) + " waits for never comes";
    }
    return Names(behind) + (behind.size() == 1 ? " is" : " are") +
           " behind the others, at: " + answers[behind.front()].doing;
  }

  std::string EndKey(int round, int rank) const {
    return "round " + std::to_string(round) + '/' + std::to_string(rank);
  }

  /// How the rank's round ended, once it has.
  std::string EndOf(int round, int rank) const {
    const std::vector<std::uint8_t> bytes = store->get(EndKey(round, rank));
    return {bytes.begin(), bytes.end()};
  }

  bool SomeoneEnded(int round) const {
    for (int rank = 0; rank < place.size; ++rank) {
      if (store->check({EndKey(round, rank)})) return true;
    }
    return false;
  }

  /// Empty when all have ended it.
  std::string AwaitEnd(int round, milliseconds limit) const {
    const auto end = Clock::now() + limit;
    constexpr milliseconds kPause{2};
    for (int rank = 0; rank < place.size; ++rank) {
      while (!store->check({EndKey(round, rank)})) {
        if (Clock::now() > end || store->check({kVerdict})) return WhoIsMissing(/*waited=*/true);
        std::this_thread::sleep_for(kPause);
      }
      // The first word says how.
      const std::string how = EndOf(round, rank);
      if (how.starts_with(kErrorEnd)) {
        return Names({rank}) + " stopped with an error, at: " + Ask(rank).doing + " (" +
               how.substr(kErrorEnd.size()) + ")";
      }
    }
    return "";
  }
};

/// Its result, or nothing if it takes longer. A store whose process is stopped never answers, and
/// the question cannot be taken back: then it goes on by itself, with what it was given.
template <class Function>
auto InTime(milliseconds limit, Function function) -> std::optional<decltype(function())> {
  auto task = std::make_shared<std::packaged_task<decltype(function())()>>(std::move(function));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace

void TellThatRankEnded(c10d::Store& store, const std::string& words) {
  store.compareSet(kEnded, {}, AsBytes(words));
}

std::optional<std::string> RankThatEnded(c10d::Store& store) {
  if (!store.check({kEnded})) return std::nullopt;
  const std::vector<std::uint8_t> bytes = store.get(kEnded);
  return std::string(bytes.begin(), bytes.end());
}

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> said, c10::intrusive_ptr<c10d::Store> asked,
                   Place place)
    : said_(std::move(said)), asked_(std::move(asked)), place_(std::move(place)) {
  Say(/*leaves=*/false);
  thread_ = std::jthread([this](const std::stop_token& stop) { Beat(stop); });
}

RollCall::~RollCall() { Leave(); }

void RollCall::Leave() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  try {
    Say(/*leaves=*/true);
  } catch (const std::exception&) {
    // Whoever kept the store has left before.
  }
}

void RollCall::Beat(const std::stop_token& stop) {
  // However quick the steps are, the store is not to be busy with them.
  constexpr milliseconds kPause{20};
  try {
    while (!stop.stop_requested()) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, stop, kPause, [] { return false; });
        changed_.wait_for(lock, stop, place_.interval, [&] { return news_; });
        news_ = false;
      }
      if (!stop.stop_requested()) Say(/*leaves=*/false);
    }
  } catch (const std::exception&) {
    // The store is gone: then nobody can be told, and the next collective fails.
  }
}

void RollCall::Say(bool leaves) {
  std::ostringstream text;
  {
    const std::lock_guard lock(mutex_);
    text << beat_++ << ' ' << (waits_ > 0) << ' ' << leaves << ' ' << doing_;
  }
  said_->set(KeyOf(place_.rank), AsBytes(text.str()));
}

void RollCall::Doing(std::string what) {
  const std::lock_guard lock(mutex_);
  doing_ = std::move(what);
  news_ = true;
  changed_.notify_all();
}

void RollCall::Waits(bool waits) {
  const std::lock_guard lock(mutex_);
  waits_ += waits ? 1 : -1;
}

std::string RollCall::StoreIsSilent() const { return place_.keeper + " does not answer"; }

std::string RollCall::Asked(milliseconds limit,
                            const std::function<std::string()>& question) const {
  try {
    return InTime(limit, question).value_or(StoreIsSilent());
  } catch (const std::exception&) {
    return StoreIsSilent();
  }
}

void RollCall::Meet(milliseconds limit) {
  const std::string missing =
      Asked(limit + 2 * place_.interval,
            [roll = Roll{asked_, place_}, limit] { return roll.Await(limit); });
  if (missing.empty()) return;
  throw RankError("rank " + std::to_string(place_.rank) + " of " + std::to_string(place_.size) +
                  ": " + missing + ".");
}

void RollCall::EndRound(int round, End end, const std::string& text) {
  const std::string_view how = end == End::kError         ? kErrorEnd
                               : end == End::kOutOfMemory ? kOutOfMemoryEnd
                                                          : "broken: ";
  Asked(place_.interval * 5, [roll = Roll{asked_, place_}, round, said = std::string(how) + text] {
    roll.store->set(roll.EndKey(round, roll.place.rank), AsBytes(said));
    return std::string();
  });
}

bool RollCall::SomeoneEnded(int round) {
  return Asked(place_.interval * 5, [roll = Roll{asked_, place_}, round] {
           return std::string(roll.SomeoneEnded(round) ? "yes" : "");
         }) == "yes";
}

std::vector<int> RollCall::AwaitEndOfRound(int round, milliseconds limit) {
  const Roll roll{asked_, place_};
  Waits(true);
  const std::string wrong = Asked(
      limit, [roll, round, in = limit - 6 * place_.interval] { return roll.AwaitEnd(round, in); });
  if (!wrong.empty()) {
    throw RankError("rank " + std::to_string(place_.rank) + " of " + std::to_string(place_.size) +
                    ": " + wrong + ".");
  }
  Waits(false);
  std::vector<int> full;
  for (int rank = 0; rank < place_.size; ++rank) {
    if (roll.EndOf(round, rank).starts_with(kOutOfMemoryEnd)) full.push_back(rank);
  }
  return full;
}

std::string RollCall::WhoIsMissing(bool waited) {
  Waits(true);
  return Asked(6 * place_.interval,
               [roll = Roll{asked_, place_}, waited] { return roll.WhoIsMissing(waited); });
}

void RollCall::AwaitOthersLeaving(milliseconds limit) {
  const Roll roll{asked_, place_};
  const auto end = Clock::now() + limit;
  constexpr milliseconds kPause{5};
  while (!roll.AllOthersLeft() && Clock::now() < end) std::this_thread::sleep_for(kPause);
}

}  // namespace plimsoll::train
