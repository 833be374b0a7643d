// Choices as people type them.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "plan/lever.h"

namespace plimsoll {

/// The same choice with each of "lever=value" set.
inline Choice WithSettings(Choice choice, std::initializer_list<std::string_view> settings) {
  for (const std::string_view setting : settings) {
    const std::optional<Error> error = ReadSetting(setting, choice);
    EXPECT_EQ(error, std::nullopt) << error->ToLine();
  }
  return choice;
}

}  // namespace plimsoll
