// The last linear layer and its cross-entropy in chunks of rows, so that logits of all rows are
// never there at once.
#include <fmt/format.h>

#include <charconv>

#include "job/transforms/chunked_loss.h"
#include "plan/lever.h"

namespace plimsoll {

namespace {

constexpr std::string_view kChunked = "chunked";

Result<int> ChunksOf(std::string_view value) {
  if (value == kChunked) return kDefaultChunks;
  int chunks = 0;
  if (value.starts_with("chunked:")) {
    const std::string_view count = value.substr(kChunked.size() + 1);
    const auto read = std::from_chars(count.data(), count.data() + count.size(), chunks);
    if (read.ec != std::errc() || read.ptr != count.data() + count.size()) chunks = 0;
  }
  if (chunks < 2 || chunks > kMostChunks) {
    return Error{.message = fmt::format("the loss cannot be '{}'", value),
                 .hint = fmt::format("chunked, or chunked:2 to chunked:{}", kMostChunks)};
  }
  return chunks;
}

/// Logits of the captured batch, two samples mostly, that are smaller are not worth a try.
constexpr Bytes kWorthIt = 16 * kMiB;

std::vector<std::string> LossCode(const Job& job, const Choice& choice) {
  const Result<int> read = ChunksOf(choice.Get(kLossLever.name));
  const int chunks = read ? *read : kDefaultChunks;
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

}  // namespace

std::vector<std::string> NotCheckpointed(const Job& job, const Variant& variant,
                                         const Choice& choice) {
  const Result<int> chunks = ChunksOf(choice.Get(kLossLever.name));
  return chunks ? LogitLayers(job, variant, *chunks) : std::vector<std::string>();
}

const PlanLever kLossLever = {
    .name = "loss",
    .values = "chunked or chunked:N, in so many chunks of rows",
    .numerics = OtherRounding,
    .worth_trying = [](const PlanRequest& request,
                       const Variant& variant) -> std::vector<std::string> {
      if (LogitsOf(request.job, variant, kDefaultChunks) < kWorthIt) return {};
      return {fmt::format("{}:{}", kChunked, kDefaultChunks)};
    },
    .why_not =
        [](const PlanRequest& request, const Variant& variant) {
          return WhyNotChunked(request.job, variant, kDefaultChunks, kWorthIt);
        },
    .describe =
        [](const Job&, const Choice& choice) {
          const Result<int> chunks = ChunksOf(choice.Get(kLossLever.name));
          return fmt::format("loss in {} chunks", chunks ? *chunks : kDefaultChunks);
        },
    .fields = [](const Job&, const Choice& choice) -> LeverFields {
      const Result<int> chunks = ChunksOf(choice.Get(kLossLever.name));
      return {{"chunks", std::int64_t{chunks ? *chunks : kDefaultChunks}}};
    },
    .code = LossCode,
    .rewrite = [](Job& job, Variant& variant, std::string_view value) -> std::optional<Error> {
      const Result<int> chunks = ChunksOf(value);
      if (!chunks) return chunks.error();
      Result<Variant> chunked = ChunkLoss(job, variant, *chunks);
      if (!chunked) return chunked.error();
      variant = std::move(*chunked);
      return std::nullopt;
    },
};

}  // namespace plimsoll
