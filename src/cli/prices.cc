#include "cli/prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "files/input.h"

namespace plimsoll {
namespace {

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// `file` and `line`: where it stands, of a file.
std::optional<Error> ReadPrice(std::string_view text, Prices& to, const std::string& file = {},
                               std::size_t line = 0) {
  const std::string where = file.empty() ? "" : fmt::format("line {}: ", line);
  const std::size_t equals = text.rfind('=');
  const std::string_view amount =
      equals == std::string_view::npos ? "" : Trimmed(text.substr(equals + 1));
  double price = 0;
  const char* const end = amount.data() + amount.size();
  const auto read = std::from_chars(amount.data(), end, price);
  if (amount.empty() || read.ec != std::errc() || read.ptr != end || !std::isfinite(price) ||
      price < 0) {
    return Error{.message = fmt::format("{}'{}' is no price of a card", where, text),
                 .file = file,
                 .hint = "give the card and what an hour of it costs: \"RTX 4090=0.34\""};
  }
  Result<Gpu> gpu = FindGpu(Trimmed(text.substr(0, equals)));
  if (!gpu) {
    Error error = gpu.error();
    error.message = where + error.message;
    error.file = file;
    return error;
  }
  to[gpu->name] = price;
  return std::nullopt;
}

}  // namespace

std::optional<Error> ReadPrices(const std::string& text, Prices& to) {
  if (text.find('=') != std::string::npos) return ReadPrice(text, to);
  const Result<Input> input = Input::Open(text);
  if (!input) return input.error();
  std::string_view rest = input->bytes();
  for (std::size_t line = 1; !rest.empty(); ++line) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view one = Trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(rest.size(), end + 1));
    if (one.empty() || one.starts_with('#')) continue;
    if (std::optional<Error> error = ReadPrice(one, to, text, line)) return error;
  }
  return std::nullopt;
}

std::vector<PricedCard> Priced(const std::vector<CardNeeds>& cards, const Prices& prices) {
  std::vector<PricedCard> found;
  for (const CardNeeds& card : cards) {
    const auto price = prices.find(card.gpu.name);
    found.push_back({card, price == prices.end() ? std::nullopt : std::optional(price->second)});
  }
  std::ranges::stable_sort(found, {}, [](const PricedCard& card) {
    return std::tuple(!card.price, card.price.value_or(0), card.needs.gpu.memory);
  });
  return found;
}

}  // namespace plimsoll
