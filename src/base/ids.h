// Typed indices: the index of a stack cannot be passed where that of a frame is meant.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/hash.h"

namespace plimsoll {

template <typename Tag>
struct Id {
  static constexpr std::uint32_t kNone = 0xffffffffu;
  std::uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(std::size_t v) : value(static_cast<std::uint32_t>(v)) {}
  constexpr bool valid() const { return value != kNone; }
  constexpr std::size_t index() const { return value; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

}  // namespace plimsoll

template <typename Tag>
struct std::hash<plimsoll::Id<Tag>> {
  std::size_t operator()(plimsoll::Id<Tag> id) const noexcept {
    return plimsoll::MixHash(0, id.value);
  }
};
