// The last linear layer and its cross-entropy in chunks of rows, so that logits of all rows are
// never there at once.
#include <fmt/format.h>

#include <charconv>

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

std::vector<std::string> LossCode(const Job& job, const Choice& choice, const LeverValue& value) {
  const int chunks = ChunksOf(value);
  const std::vector<std::string> layers = LogitLayers(job, VariantOf(job, choice), chunks);
  const std::string layer = layers.empty() ? "head" : layers.front();
  const std::string name = layers.empty() ? layer : "model." + layer;
  return {
      fmt::format("# in place of the last linear layer ({}{}) and F.cross_entropy of its logits,",
                  layers.empty() ? "here " : "", layer),
      "# with the labels that it got (those of a causal model are shifted)",
      fmt::format("loss = plimsoll.chunked_cross_entropy(hidden, {}.weight, labels, chunks={})",
                  name, chunks)};
}

/// Their names are the same in every precision.
std::vector<std::string> LayersIn(const Job& job, int chunks) {
  for (const Variant& variant : job.variants) {
    std::vector<std::string> layers = LogitLayers(job, variant, chunks);
    if (!layers.empty()) return layers;
  }
  return {};
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
    .fields = [](const Job& job, const LeverValue& value) -> LeverFields {
      const int chunks = ChunksOf(value);
      return {{"chunks", std::int64_t{chunks}}, {"layers", LayersIn(job, chunks)}};
    },
    .code = LossCode,
    .rewrite = [](Job& job, Variant& variant, const LeverValue& value) -> std::optional<Error> {
      Result<Variant> chunked = ChunkLoss(job, variant, ChunksOf(value));
      if (!chunked) return chunked.error();
      variant = std::move(*chunked);
      return std::nullopt;
    },
};

}  // namespace plimsoll
