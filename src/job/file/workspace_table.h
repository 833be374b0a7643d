// What convolutions take beside their results, by shape and direction and at some batches: lines
// that a calibration file has measured (docs/formats/calibration.md), or that cuDNN was asked for
// when a step was captured (docs/formats/step.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "files/json.h"

namespace plimsoll {

class WorkspaceTable {
 public:
  /// What a shape takes at a batch.
  struct Point {
    std::int64_t batch = 0;
    Bytes bytes = 0;
  };
  /// One direction of a shape. Points on the line through their neighbours are left out; all that
  /// are known are those at `batches`.
  struct Series {
    std::vector<Point> points;
    const std::vector<std::int64_t>* batches = nullptr;
  };
  using Lists = std::vector<std::vector<std::int64_t>>;

  WorkspaceTable() = default;
  /// `text` has the lines that are added; they are read when their shape is asked for, since a step
  /// has a few dozen of what may be many thousands.
  WorkspaceTable(std::shared_ptr<const std::string> text, Lists batches);

  /// Lists of whole numbers that rise; nothing where it is anything else.
  static std::optional<Lists> ReadBatches(const Json& json);
  /// A key, which list of batches, and three cells of points, with tabs between. False, and nothing
  /// is added, where it is anything else.
  bool Add(std::string_view line);

  std::size_t size() const { return lines_.size(); }
  bool Has(std::string_view key) const { return lines_.contains(key); }
  /// `direction` counts the cells of a line from 0. Without points where nothing is known.
  Series Find(std::string_view key, std::size_t direction) const;

 private:
  std::shared_ptr<const std::string> text_;
  Lists batches_;
  HashMap<std::string_view, std::string_view> lines_;
};

/// What cuDNN said at the capture that convolutions take on one card.
struct AskedWorkspaces {
  /// By the name that the catalogue has for it, if it is there.
  std::string gpu;
  /// The release that was asked: "9.19.0".
  std::string cudnn;
  WorkspaceTable table;
  /// Of a job under torch.backends.cudnn.benchmark, else empty: the largest of the plans that
  /// PyTorch times, and the largest of all, which it takes to time them.
  WorkspaceTable timed = {};
  WorkspaceTable searched = {};
};

}  // namespace plimsoll
