#include "job/answer/served_cache.h"

#include <algorithm>

#include "job/calls/call.h"

namespace plimsoll {
namespace {

/// What is in the cache when a round of a loop ends.
struct RoundEnd {
  Moment moment;
  Bytes bytes = 0;
};

std::vector<RoundEnd> EndsOfRounds(const Lowered& lowered) {
  std::vector<RoundEnd> ends;
  Bytes bytes = 0;
  const std::vector<Request>& requests = lowered.workload.requests;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const LoweredBlock& block = lowered.blocks[requests[i].allocation];
    if (block.category == Category::kCache) {
      if (requests[i].kind == Request::Kind::kAllocate) bytes += block.requested;
      if (requests[i].kind == Request::Kind::kFree) bytes -= block.requested;
    }
    const Moment& moment = lowered.moments[i];
    const bool goes_on = i + 1 < requests.size() && lowered.moments[i + 1].part == moment.part &&
                         lowered.moments[i + 1].round == moment.round;
    if (!goes_on && moment.part != Moment::kSteps) ends.push_back({moment, bytes});
  }
  return ends;
}

bool Generates(const Variant& variant, const Moment& moment) {
  return moment.part != Moment::kSteps &&
         variant.later[static_cast<std::size_t>(moment.part)].stage == Stage::kGeneration;
}

}  // namespace

std::optional<ServedCache> FindServedCache(const Trial& trial) {
  const Variant& variant = trial.setting().variant();
  if (Trains(variant)) return std::nullopt;
  ServedCache cache;
  const RoundEnd* before = nullptr;
  const std::vector<RoundEnd> ends = EndsOfRounds(trial.lowered());
  for (const RoundEnd& end : ends) {
    if (!Generates(variant, end.moment)) continue;
    cache.bytes = std::max(cache.bytes, end.bytes);
    if (before && before->moment.part == end.moment.part && end.bytes > before->bytes) {
      const std::int64_t rounds = end.moment.round - before->moment.round;
      cache.token = (end.bytes - before->bytes) / std::max<std::int64_t>(rounds, 1) /
                    std::max<std::int64_t>(trial.setting().batch, 1);
    }
    before = &end;
  }
  if (cache.bytes == 0) return std::nullopt;
  if (cache.token && *cache.token > 0) {
    Bytes model = 0;
    for (const LoweredBlock& block : trial.lowered().blocks) {
      if (block.category == Category::kParameters) model += block.requested;
    }
    cache.tokens = std::max<Bytes>(trial.setting().Room() - model, 0) / *cache.token;
  }
  return cache;
}

std::optional<TokenNumber> TokenAt(const Setting& setting, const Moment& moment) {
  const std::vector<Part>& later = setting.variant().later;
  if (!Generates(setting.variant(), moment)) return std::nullopt;
  // The prompt gives the first.
  TokenNumber found{.token = 1, .of = 1};
  for (std::size_t i = 0; i < later.size(); ++i) {
    const bool behind = static_cast<int>(i) > moment.part;
    if (later[i].stage != Stage::kGeneration) {
      if (later[i].stage != Stage::kUnknown && behind) break;
      if (later[i].stage != Stage::kUnknown) found = {.token = 1, .of = 1};
      continue;
    }
    const std::int64_t times = BatchesAt(*setting.job, later[i].times, setting.batch);
    found.of += times;
    if (static_cast<int>(i) < moment.part) found.token += times;
    if (static_cast<int>(i) == moment.part) found.token += 1 + moment.round;
  }
  return found;
}

}  // namespace plimsoll
