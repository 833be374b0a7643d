// Help texts, comments, source code and log lines speak of running out of memory without having
// done so: "avoids CUDA out of memory", "dumps a snapshot if CUDA runs out of memory".
#pragma once

#include <cstddef>
#include <string_view>

namespace plimsoll {

/// Whether the words from `begin` to `end` only speak of it. For words that no figures follow: a
/// report must never be taken for talk, so that everything which looks like one decides first.
bool OnlySpeaksOfIt(std::string_view text, std::size_t begin, std::size_t end);

}  // namespace plimsoll
