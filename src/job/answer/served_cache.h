// What a model that generates keeps of each token: its cache of keys and values.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "job/trial/trial.h"

namespace plimsoll {

struct ServedCache {
  /// At its largest, between two tokens.
  Bytes bytes = 0;
  /// What each further token of a sequence adds; nothing where the cache is made before.
  std::optional<Bytes> token = {};
  /// Tokens of all sequences together for which there is room beside the model.
  std::optional<std::int64_t> tokens = {};
};

/// Nothing where there is none.
std::optional<ServedCache> FindServedCache(const Trial& trial);

/// The number of the token, from 1, that a moment of a generation belongs to, and of how many.
struct TokenNumber {
  std::int64_t token = 0;
  std::int64_t of = 0;
};
std::optional<TokenNumber> TokenAt(const Setting& setting, const Moment& moment);

}  // namespace plimsoll
