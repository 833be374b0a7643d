// What the tests of the error texts share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "readers/error_text/error_text.h"

namespace plimsoll {

/// "12.50 GiB" as the reader must give it.
inline Bytes GiB(double n) { return static_cast<Bytes>(n * static_cast<double>(kGiB) + 0.5); }
inline Bytes MiB(double n) { return static_cast<Bytes>(n * static_cast<double>(kMiB) + 0.5); }

inline Recording ReadText(const std::string& text) {
  Result<Input> input = Input::FromMemory("run.log", text);
  EXPECT_TRUE(input.ok());
  Result<Recording> recording = ReadErrorText(*input);
  if (!recording) return {};
  return std::move(*recording);
}

/// The only message of the text.
inline OomMessage ReadOne(const std::string& text) {
  EXPECT_TRUE(RecogniseErrorText(text)) << text;
  Recording recording = ReadText(text);
  EXPECT_EQ(recording.messages.size(), 1u) << text;
  return recording.messages.empty() ? OomMessage{} : recording.messages.front();
}

/// "2.5 to 2.10"; "" where the words do not tell.
inline std::string VersionsOf(const OomMessage& message) {
  return message.torch ? message.torch->ToString() : "";
}

}  // namespace plimsoll
