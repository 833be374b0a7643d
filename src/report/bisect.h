// Which commit, or which release, made a job grow: as text and as JSON. Nothing is computed here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answer/change.h"
#include "report/format/style.h"

namespace plimsoll {

/// What is tried: commits, or Pythons with other releases of PyTorch.
enum class BisectedThing : std::uint8_t { kCommit, kRelease };

/// One of them.
struct BisectCandidate {
  /// A commit's hash; the path of a Python.
  std::string name;
  /// A commit's subject; the release of PyTorch, where it was tried.
  std::string title = {};
  std::string author = {};
  std::string date = {};
  std::size_t parents = 1;
};

/// What a prediction says of it.
struct BisectFigures {
  Bytes allocated = 0;
  Bytes reserved = 0;
  Bytes device = 0;
  std::int64_t batch = 0;
  bool fits = true;
};

/// In the order in which they were tried.
struct BisectTry {
  std::size_t candidate = 0;
  /// Nothing where there is none: then why.
  std::optional<BisectFigures> figures = {};
  std::string refused = {};
};

struct BisectAnswer {
  BisectedThing thing = BisectedThing::kCommit;
  /// The first is that which is as it should be.
  std::vector<BisectCandidate> candidates;
  std::vector<BisectTry> tries;
  std::string gpu;
  /// "5%", "200.00 MiB"
  std::string allowed;
  /// It grew by more than that, between these two.
  bool found = false;
  std::size_t last_before = 0;
  std::size_t first_after = 0;
  /// Of these two, or of the first and the last where nothing was found.
  Change allocated = {};
  Change reserved = {};
  std::int64_t batch_before = 0;
  std::int64_t batch_after = 0;
  std::vector<Change> categories = {};
  std::vector<Change> holders = {};
  /// Of all of them, from the first to the last.
  Change reserved_in_all = {};
};

std::string BisectVerdict(const BisectAnswer& answer);
std::string BisectText(const BisectAnswer& answer, const TextStyle& style);
std::string BisectJson(const BisectAnswer& answer);

}  // namespace plimsoll
