#include <fmt/format.h>

#include <algorithm>

#include "report/cards.h"
#include "report/format/json_values.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/predict_verdict.h"
#include "report/text.h"

namespace plimsoll {
namespace {

constexpr double kMicroseconds = 1e6;
constexpr double kSecondsInAnHour = 3600;
constexpr double kSteps = 1000;

/// Of a thousand steps.
std::optional<double> CostOfSteps(const PricedCard& card) {
  if (!card.price || card.needs.step_us <= 0) return std::nullopt;
  return *card.price * kSteps * card.needs.step_us / kMicroseconds / kSecondsInAnHour;
}

std::string_view Word(FitDecision decision) {
  if (decision == FitDecision::kDoesNotFit) return "no";
  return decision == FitDecision::kFits ? "yes" : "unknown";
}

std::string Money(const std::optional<double>& amount) {
  return amount ? fmt::format("{:.2f}", *amount) : "-";
}

std::string Headline(const CardsAnswer& answer) {
  const auto count = [&](FitDecision decision) {
    return std::ranges::count(answer.cards, decision,
                              [](const PricedCard& card) { return card.needs.decision; });
  };
  const auto fitting = count(FitDecision::kFits), unknown = count(FitDecision::kUnknown);
  const std::string of = fmt::format("of the {} cards of the catalogue", answer.cards.size());
  if (fitting == 0 && unknown == 0) {
    return fmt::format("Does not fit: batch {} fits none {}.", answer.batch, of);
  }
  if (fitting == 0) {
    return fmt::format(
        "Unknown: batch {} may fit {} {}, and fits none for certain{}.", answer.batch, unknown, of,
        answer.not_followed.empty() ? "" : ": " + TextOf(answer.not_followed.front()));
  }
  const auto first = std::ranges::find_if(answer.cards, [](const PricedCard& card) {
    return card.needs.decision == FitDecision::kFits;
  });
  const bool priced = first->price.has_value();
  return fmt::format("Fits: batch {} fits {} {}; the {} is {}{}.", answer.batch, fitting, of,
                     priced ? "cheapest" : "smallest", first->needs.gpu.name,
                     priced ? fmt::format(" at {} an hour", Money(first->price)) : "");
}

}  // namespace

std::string CardsText(const CardsAnswer& answer, const TextStyle& style) {
  Writer w(style);
  w.Headline(Headline(answer));
  const bool priced = std::ranges::any_of(
      answer.cards, [](const PricedCard& card) { return card.price.has_value(); });
  std::vector<Column> columns = {{.heading = "card"},
                                 {.heading = "fits"},
                                 {.heading = "needs", .right = true},
                                 {.heading = "has", .right = true},
                                 {.heading = "a step", .right = true, .may_go = true}};
  if (priced) {
    columns.push_back({.heading = "an hour", .right = true});
    columns.push_back({.heading = "1000 steps", .right = true, .may_go = true});
  }
  Table table(std::move(columns));
  bool has_rows = false;
  for (const PricedCard& card : answer.cards) {
    if (card.needs.decision == FitDecision::kDoesNotFit) continue;
    has_rows = true;
    std::vector<std::string> cells = {
        card.needs.gpu.name, std::string(Word(card.needs.decision)), FormatBytes(card.needs.device),
        FormatBytes(card.needs.gpu.memory), fmt::format("{:.0f} ms", card.needs.step_us / 1000)};
    if (priced) {
      cells.push_back(Money(card.price));
      cells.push_back(Money(CostOfSteps(card)));
    }
    table.Row(std::move(cells));
  }
  if (has_rows) {
    w.Line();
    table.WriteTo(w);
  }
  if (!answer.left_out.empty()) {
    w.Line();
    w.Wrapped(fmt::format("Not tried, since the step is long: {}. Ask for one of them by name.",
                          fmt::join(answer.left_out, ", ")),
              "", "");
  }
  w.List("Assumed", answer.notes);
  return w.Take();
}

std::string CardsJson(const CardsAnswer& answer) {
  Json cards = Json::array();
  for (const PricedCard& card : answer.cards) {
    const std::optional<double> cost = CostOfSteps(card);
    cards.push_back({{"gpu", card.needs.gpu.name},
                     {"verdict", DecisionName(card.needs.decision)},
                     {"fits", card.needs.fits},
                     {"surely_fits", card.needs.surely_fits},
                     {"device_bytes", card.needs.device},
                     {"memory_bytes", card.needs.gpu.memory},
                     {"step_us", card.needs.step_us},
                     {"price_per_hour", card.price ? Json(*card.price) : Json()},
                     {"price_per_1000_steps", cost ? Json(*cost) : Json()}});
  }
  return Dump(Shown({{"schema", "plimsoll.cards/1"},
                     {"batch", answer.batch},
                     {"cards", std::move(cards)},
                     {"unknown", NotFollowedJson(answer.not_followed)},
                     {"left_out", answer.left_out},
                     {"notes", answer.notes}}));
}

}  // namespace plimsoll
