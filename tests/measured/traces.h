// The recorded runs of tests/data, and what PyTorch itself measured beside them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "allocator/record/ledger.h"
#include "allocator/replay/verify.h"
#include "readers/registry.h"

namespace plimsoll {

/// "snapshots/llama_var_default", …: every trace of these folders of tests/data.
inline std::vector<std::string> TracesIn(std::initializer_list<const char*> folders) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  for (const char* folder : folders) {
    for (const auto& entry : fs::directory_iterator(fs::path(PLIMSOLL_TEST_DATA) / folder)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".pickle.xz")) {
        names.push_back(std::string(folder) + "/" + name.substr(0, name.size() - 10));
      }
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A test name may hold letters, digits and underlines only.
inline std::string TestName(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

/// The .json beside a trace; an empty object where there is none.
inline nlohmann::json MeasuredOf(const std::string& name) {
  std::ifstream file(std::string(PLIMSOLL_TEST_DATA "/") + name + ".json");
  return file ? nlohmann::json::parse(file) : nlohmann::json::object();
}

/// The memory limit of the run, which no snapshot holds.
inline std::optional<Bytes> LimitOf(const nlohmann::json& measured) {
  const nlohmann::json spec = measured.value("spec", nlohmann::json::object());
  if (!spec.contains("cap_gib") || spec["cap_gib"].is_null()) return std::nullopt;
  return static_cast<Bytes>(spec["cap_gib"].get<double>() * static_cast<double>(kGiB));
}

/// A recorded run: what it holds and what follows from it.
struct Trace {
  Timeline timeline;
  nlohmann::json measured;

  explicit Trace(const std::string& name) : measured(MeasuredOf(name)) {
    Result<Recording> recording = ReadFile(PLIMSOLL_TEST_DATA "/" + name + ".pickle.xz");
    if (!recording.ok()) {
      ADD_FAILURE() << recording.error().ToLine();
      return;
    }
    EXPECT_EQ(recording->timelines.size(), 1u) << name;
    EXPECT_TRUE(recording->skipped.empty()) << name;
    timeline = std::move(recording->timelines.at(0));
  }

  std::optional<Bytes> limit() const { return LimitOf(measured); }
};

}  // namespace plimsoll
