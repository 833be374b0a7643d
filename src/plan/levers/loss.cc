// The last linear layer and its loss in chunks of rows, so that logits of all rows are
// never there at once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "job/transforms/chunked_loss.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

struct ChunkedLoss {
  /// kDefaultChunks where nobody said how many.
  std::optional<int> told = {};

  int chunks() const { return told.value_or(kDefaultChunks); }
};

constexpr std::string_view kChunked = "chunked";

LeverValue LossValue(ChunkedLoss loss) {
  std::string text(kChunked);
  if (loss.told) text += fmt::format(":{}", *loss.told);
  return {std::move(text), loss};
}

Result<LeverValue> ParseLoss(std::string_view text) {
  if (text == kChunked) return LossValue({});
  int chunks = 0;
  if (text.starts_with("chunked:")) {
    const std::string_view count = text.substr(kChunked.size() + 1);
    const auto read = std::from_chars(count.data(), count.data() + count.size(), chunks);
    if (read.ec != std::errc() || read.ptr != count.data() + count.size()) chunks = 0;
  }
  if (chunks < 2 || chunks > kMostChunks) {
    return Error{.message = fmt::format("the loss cannot be '{}'", text),
                 .hint = fmt::format("chunked, or chunked:2 to chunked:{}", kMostChunks)};
  }
  return LossValue({.told = chunks});
}

int ChunksOf(const LeverValue& value) { return value.As<ChunkedLoss>().chunks(); }

/// Logits of the captured batch, two samples mostly, that are smaller are not worth a try.
constexpr Bytes kWorthIt = 16 * kMiB;

std::vector<std::string> CrossEntropyCode(const LossInChunks& loss, int chunks) {
  const std::string layer = loss.layer.empty() ? "head" : loss.layer;
  const std::string name = loss.layer.empty() ? layer : "model." + layer;
  return {
      fmt::format("# in place of the last linear layer ({}{}) and F.cross_entropy of its logits,",
                  loss.layer.empty() ? "here " : "", layer),
      "# with the labels that it got (those of a causal model are shifted)",
      fmt::format("loss = plimsoll.chunked_cross_entropy(hidden, {}.weight, labels{}, chunks={})",
                  name, loss.has_bias ? fmt::format(", {}.bias", name) : "", chunks)};
}

std::vector<std::string> LogProbsCode(const LossInChunks& loss, int chunks) {
  const std::string layer = loss.layer.empty() ? "head" : loss.layer;
  const std::string name = loss.layer.empty() ? layer : "model." + layer;
  return {fmt::format("# in place of the last linear layer ({}{}), log_softmax of its logits and",
                      loss.layer.empty() ? "here " : "", layer),
          "# gather, with the labels that it got and the hidden states of the same positions",
          fmt::format("log_probs{} = plimsoll.chunked_log_probs(", loss.entropy ? ", entropy" : ""),
          fmt::format("    hidden, {}.weight, labels{}, chunks={}{}{})", name,
                      loss.has_bias ? fmt::format(", {}.bias", name) : "", chunks,
                      loss.scaled ? ", temperature=temperature" : "",
                      loss.entropy ? ", entropy=True" : "")};
}

std::vector<std::string> LossCode(const Job& job, const Choice& choice, const LeverValue& value) {
  const int chunks = ChunksOf(value);
  std::vector<LossInChunks> losses = LossesInChunks(job, VariantOf(job, choice), chunks);
  if (losses.empty()) losses.emplace_back();
  std::vector<std::string> lines;
  std::set<std::string> told;
  for (const LossInChunks& loss : losses) {
    const auto code = (loss.log_probs ? LogProbsCode : CrossEntropyCode)(loss, chunks);
    if (!told.insert(fmt::format("{}", fmt::join(code, "\n"))).second) continue;
    lines.insert(lines.end(), code.begin(), code.end());
  }
  return lines;
}

/// They are the same in every precision.
std::vector<LossInChunks> LossesIn(const Job& job, int chunks) {
  for (const Variant& variant : job.variants) {
    std::vector<LossInChunks> losses = LossesInChunks(job, variant, chunks);
    if (!losses.empty()) return losses;
  }
  return {};
}

LeverFields LossFields(const Job& job, const LeverValue& value) {
  const int chunks = ChunksOf(value);
  std::vector<std::string> layers;
  std::vector<std::string> kinds;
  const auto add = [](std::vector<std::string>& to, const std::string& name) {
    const bool known = std::find(to.begin(), to.end(), name) != to.end();
    if (!name.empty() && !known) to.push_back(name);
  };
  bool by_hand = false;
  bool without_gradient = false;
  for (const LossInChunks& loss : LossesIn(job, chunks)) {
    add(layers, loss.layer);
    add(kinds, loss.log_probs ? "log_probs" : "cross_entropy");
    by_hand = by_hand || !loss.applies;
    without_gradient = without_gradient || !loss.has_gradient;
  }
  return {{"chunks", std::int64_t{chunks}},
          {"layers", std::move(layers)},
          {"kinds", std::move(kinds)},
          {"by_hand", by_hand},
          {"without_gradient", without_gradient}};
}

}  // namespace

std::vector<std::string> NotCheckpointed(const Job& job, const Variant& variant,
                                         const Choice& choice) {
  const LeverValue* const loss = choice.Find(kLossLever.name);
  if (loss == nullptr) return {};
  return LogitLayers(job, variant, ChunksOf(*loss));
}

const PlanLever kLossLever = {
    .name = "loss",
    .values = "chunked or chunked:N, in so many chunks of rows",
    .parse = ParseLoss,
    .numerics = OtherRounding,
    .worth_trying = [](const PlanRequest& request,
                       const Variant& variant) -> std::vector<LeverValue> {
      if (LogitsOf(request.job, variant, kDefaultChunks) < kWorthIt) return {};
      return {LossValue({.told = kDefaultChunks})};
    },
    .why_not =
        [](const PlanRequest& request, const Variant& variant) {
          return WhyNotChunked(request.job, variant, kDefaultChunks, kWorthIt);
        },
    .describe =
        [](const Job&, const Choice&, const LeverValue& value) {
          return fmt::format("loss in {} chunks", ChunksOf(value));
        },
    .fields = LossFields,
    .code = LossCode,
    .rewrite = [](Job& job, Variant& variant, const LeverValue& value) -> std::optional<Error> {
      Result<Variant> chunked = ChunkLoss(job, variant, ChunksOf(value));
      if (!chunked) return chunked.error();
      variant = std::move(*chunked);
      return std::nullopt;
    },
};

}  // namespace plimsoll
