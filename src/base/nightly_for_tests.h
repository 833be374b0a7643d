// Tests that try very many cases alike try a part of them in `make test`, all in `make nightly`.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace plimsoll {

/// `make nightly` sets PLIMSOLL_NIGHTLY.
inline bool IsNightly() { return std::getenv("PLIMSOLL_NIGHTLY") != nullptr; }

/// Of many cases in a row each fourth, and every one by night.
inline bool IsWorthATry(std::size_t number) { return IsNightly() || number % 4 == 0; }

}  // namespace plimsoll
