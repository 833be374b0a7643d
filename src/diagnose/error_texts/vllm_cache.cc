// Room for vLLM's KV cache: what can give as much as is missing comes first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

/// What vLLM takes of the device unless told otherwise, and what it can be told at most: the driver
/// and other libraries need the rest.
constexpr double kUsualShare = 0.9;
constexpr double kMostShare = 0.95;

/// In GiB: no card has more.
constexpr double kLargestCard = 288;

/// Whether a way gives as much as is missing.
enum class Suffices : std::uint8_t { kYes, kPerhaps, kNo };

struct CacheWay {
  Suffices suffices;
  Remedy remedy;
};

std::optional<Bytes> MissingFor(const OomMessage& m) {
  if (m.requested && m.free) return std::max<Bytes>(0, *m.requested - *m.free);
  // The weights alone exceed the share: at least that is missing.
  return m.other;
}

CacheWay LargerShare(const OomMessage& m) {
  const double share = m.share.value_or(kUsualShare);
  const std::optional<Bytes> missing = MissingFor(m);
  const double spare = std::max(0.0, kMostShare - share);
  double wanted = kMostShare;
  CacheWay way{Suffices::kPerhaps, {}};
  std::string words =
      "a higher --gpu-memory-utilization: the KV cache gets what the weights leave of that share";
  if (m.capacity && missing) {
    const Bytes gives = static_cast<Bytes>(spare * double(*m.capacity));
    way.suffices = gives >= *missing ? Suffices::kYes : Suffices::kNo;
    if (way.suffices == Suffices::kYes) {
      wanted = std::min(kMostShare,
                        std::ceil((share + double(*missing) / double(*m.capacity)) * 100) / 100);
    } else {
      words += fmt::format("; at {:.2f} that is {} more, and {} is missing", kMostShare,
                           FormatBytes(gives), FormatBytes(*missing));
    }
  } else if (missing && spare > 0) {
    // The text does not tell the card.
    const double least = double(*missing) / spare / double(kGiB);
    if (least > kLargestCard) way.suffices = Suffices::kNo;
    words += fmt::format(
        "; {} is missing, and {:.2f} instead of {}{:.2f} is enough only on a card "
        "of {:.0f} GiB or more",
        FormatBytes(*missing), kMostShare, m.share ? "" : "the default of ", share,
        std::ceil(least));
  }
  if (spare <= 0) way.suffices = Suffices::kNo;
  std::vector<std::string> code;
  if (way.suffices != Suffices::kNo) {
    code = {fmt::format("vllm serve MODEL --gpu-memory-utilization {:.2f}", wanted)};
  }
  way.remedy = Rule(std::move(words), Lever::kServerSetting, std::move(code));
  return way;
}

CacheWay ShorterContext(const OomMessage& m) {
  const bool room = m.tokens_that_fit || !m.free || *m.free > 0;
  const bool known = m.tokens_that_fit || (m.free && *m.free > 0);
  const std::int64_t tokens = m.tokens_that_fit.value_or(8192);
  return {
      known  ? Suffices::kYes
      : room ? Suffices::kPerhaps
             : Suffices::kNo,
      Rule(m.tokens_that_fit
               ? fmt::format("a --max-model-len of {}, for which the text says there is room",
                             tokens)
               : "a shorter --max-model-len: the KV cache has to hold one request of that length",
           Lever::kSmallerBatch, {fmt::format("vllm serve MODEL --max-model-len {}", tokens)})};
}

CacheWay SmallerCache(const OomMessage& m) {
  const bool known = m.requested && m.free;
  const std::string half = "vllm serve MODEL --kv-cache-dtype fp8";
  if (!known || *m.free * 2 >= *m.requested) {
    return {known ? Suffices::kYes : Suffices::kPerhaps,
            Rule("a KV cache of half the size, or a quantized model (AWQ, GPTQ, FP8)",
                 Lever::kQuantization, {half})};
  }
  // A token of half the size, and so twice as many of them.
  const std::string words =
      fmt::format("a KV cache in fp8 takes {} instead of {}, more than the {} that is left for it",
                  FormatBytes(*m.requested / 2), FormatBytes(*m.requested), FormatBytes(*m.free));
  if (!m.tokens_that_fit || *m.tokens_that_fit > std::int64_t{1} << 40) {
    return {Suffices::kNo,
            Rule(words + "; together with a shorter --max-model-len", Lever::kQuantization)};
  }
  const std::int64_t tokens = *m.tokens_that_fit * 2;
  return {Suffices::kYes,
          Rule(fmt::format("{}; with a --max-model-len of {}, twice what fits now, it has room",
                           words, tokens),
               Lever::kQuantization, {fmt::format("{} --max-model-len {}", half, tokens)})};
}

}  // namespace

std::vector<Remedy> RoomForVllmCache(const OomMessage& message) {
  std::vector<CacheWay> ways = {
      LargerShare(message),
      ShorterContext(message),
      SmallerCache(message),
      {Suffices::kPerhaps, Rule("--tensor-parallel-size over more GPUs", Lever::kSharding,
                                {"vllm serve MODEL --tensor-parallel-size 2"})}};
  std::stable_sort(ways.begin(), ways.end(),
                   [](const CacheWay& a, const CacheWay& b) { return a.suffices < b.suffices; });
  std::vector<Remedy> remedies;
  for (CacheWay& way : ways) remedies.push_back(std::move(way.remedy));
  return remedies;
}

}  // namespace plimsoll
