#include "job/answer/cards.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "base/parallel.h"
#include "base/work_budget.h"

namespace plimsoll {
namespace {

/// What all cards may take together, as Trial counts it.
constexpr std::int64_t kWorkForCards = 25'000'000;
/// The budget is looked at after so many.
constexpr std::size_t kTriedTogether = 2;

/// Places in the catalogue, so that any first part of them is spread over all sizes of memory: the
/// halves of the range first, then its quarters.
std::vector<std::size_t> SpreadByMemory(const std::vector<Card>& cards) {
  std::vector<std::size_t> by_memory(cards.size());
  for (std::size_t i = 0; i < cards.size(); ++i) by_memory[i] = i;
  std::ranges::stable_sort(by_memory, {}, [&](std::size_t i) { return cards[i].gpu.memory; });
  std::vector<std::size_t> order;
  std::vector<char> taken(cards.size(), 0);
  std::size_t apart = 1;
  while (apart < cards.size()) apart *= 2;
  for (; apart > 0; apart /= 2) {
    for (std::size_t i = 0; i < cards.size(); i += apart) {
      if (taken[i]) continue;
      taken[i] = 1;
      order.push_back(by_memory[i]);
    }
  }
  return order;
}

/// One card, and what it took to try it.
struct Tried {
  std::optional<CardNeeds> needs;
  std::vector<NotFollowed> not_followed;
  std::optional<Error> error;
  std::int64_t work = 0;
};

Tried TryCard(const Card& card, const RanksOnCard& ranks_on) {
  const Result<RankSet> ranks = ranks_on(card);
  if (!ranks) return {.error = ranks.error()};
  const Result<RankTrials> trials = RankTrials::Of(*ranks);
  if (!trials) return {.error = trials.error()};
  const TrialResult result = trials->Best();
  const bool fits = result.fits && trials->Last();
  return {.needs = CardNeeds{.gpu = card.gpu,
                             .device = result.needs.device.best,
                             .fits = fits,
                             .surely_fits = fits && result.surely_fits,
                             .decision = DecisionOf(*trials),
                             .step_us = result.step_us},
          .not_followed = NotFollowedBy(trials->Fullest().setting()),
          .work = trials->work()};
}

}  // namespace

Result<CardsFound> TryCards(const std::vector<Card>& cards, const RanksOnCard& ranks_on,
                            const std::function<void()>& tell) {
  const std::vector<std::size_t> order = SpreadByMemory(cards);
  std::vector<Tried> tried(cards.size());
  WorkBudget budget(kWorkForCards);
  for (std::size_t next = 0; next < order.size() && !budget.spent(); next += kTriedTogether) {
    const std::size_t count = std::min(kTriedTogether, order.size() - next);
    ParallelFor(count, [&](std::size_t i) {
      const std::size_t at = order[next + i];
      tried[at] = TryCard(cards[at], ranks_on);
      if (tell) tell();
    });
    for (std::size_t i = 0; i < count; ++i) {
      const Tried& one = tried[order[next + i]];
      if (one.error) return *one.error;
      budget.Spend(one.work);
    }
  }
  CardsFound found;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (tried[i].needs) {
      found.not_followed = std::move(tried[i].not_followed);
      found.cards.push_back(std::move(*tried[i].needs));
    } else {
      found.left_out.push_back(cards[i].gpu.name);
    }
  }
  return found;
}

}  // namespace plimsoll
