// Which cards a job fits on, as text and as JSON. Nothing is computed here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/answer/cards.h"
#include "report/format/style.h"

namespace plimsoll {

/// One card, with what an hour of it costs where the user said so.
struct PricedCard {
  CardNeeds needs;
  std::optional<double> price = {};
};

struct CardsAnswer {
  std::int64_t batch = 1;
  /// The cheapest first where there are prices, else the smallest.
  std::vector<PricedCard> cards;
  /// Parts of the job that were not followed: no card fits for certain.
  std::vector<NotFollowed> not_followed;
  /// Names of cards that were not tried.
  std::vector<std::string> left_out;
  std::vector<std::string> notes;
};

std::string CardsText(const CardsAnswer& answer, const TextStyle& style);
std::string CardsJson(const CardsAnswer& answer);

}  // namespace plimsoll
