#include "train/planning/levers.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <sstream>

namespace plimsoll::train {

std::string Levers::ToString() const {
  return c10::str("micro-batch ", micro_batch, ", checkpoint ", checkpoint.ToString(),
                  chunked_loss ? ", loss in chunks" : "", offload ? ", offload" : "");
}

std::string TextOf(const Levers& levers) {
  return c10::str(levers.micro_batch, ' ', levers.offload, ' ', levers.chunked_loss, ' ',
                  levers.checkpoint.ToString());
}

Levers LeversFrom(const std::string& text) {
  Levers levers;
  std::string policy;
  std::istringstream words(text);
  words >> levers.micro_batch >> levers.offload >> levers.chunked_loss >> policy;
  levers.checkpoint = CheckpointPolicy::Parse(policy);
  return levers;
}

std::vector<std::int64_t> MicroBatches(const LeverLimits& limits) {
  if (limits.micro_batch) return {std::min(*limits.micro_batch, limits.batch)};
  if (!limits.may_split) return {limits.batch};
  std::vector<std::int64_t> sizes;
  const auto add = [&](std::int64_t pieces) {
    const std::int64_t size = (limits.batch + pieces - 1) / pieces;
    const std::int64_t last = limits.batch - (limits.batch - 1) / size * size;
    const bool enough = pieces == 1 || std::min(size, last) >= limits.least_rows;
    if (enough && (sizes.empty() || sizes.back() > size)) sizes.push_back(size);
  };
  // 1, 2, 3, 4, 6, 8, 12, 16... pieces.
  for (std::int64_t pieces = 1; pieces <= limits.batch; pieces *= 2) {
    add(pieces);
    if (pieces > 1) add(pieces + pieces / 2);
  }
  add(limits.batch);
  return sizes;
}

}  // namespace plimsoll::train
