// What an hour of a card costs, as the user says: "RTX 4090=0.34", or a file of such lines.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "report/cards.h"

namespace plimsoll {

/// By the catalogue's names.
using Prices = std::map<std::string, double>;

std::optional<Error> ReadPrices(const std::string& text, Prices& to);

/// The cards with their prices: the cheapest first, then those without a price, the smallest first.
/// Parts of cards only where they have one.
std::vector<PricedCard> Priced(const std::vector<CardNeeds>& cards, const Prices& prices);

}  // namespace plimsoll
