// Where figures are put as they are read: each into its series.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "readers/log_lines/figure_line.h"
#include "timeline/logged_series.h"

namespace plimsoll {

inline constexpr double kGibi = double(kGiB);
inline constexpr double kMebi = double(kMiB);
inline constexpr double kGiga = 1e9;
inline constexpr double kOnes = 1;

/// What a field of a line is.
struct FigureField {
  std::string_view name;
  FigureKind counts = FigureKind::kTensors;
  FigureSpan span = FigureSpan::kNow;
};

/// Whose a figure is and when it was; what the line's prefix says where nothing is set.
struct FigurePlace {
  std::optional<std::int64_t> step = {};
  std::string_view phase = {};
  std::optional<int> rank = {};
  std::optional<int> device = {};
  std::string_view process = {};
};

class FigureSink {
 public:
  /// The line that is read next.
  void Begin(std::string_view program, const FigureLine& line, std::size_t number);

  /// One figure, in units of `factor` bytes.
  void Put(const FigureField& field, const Printed& printed, double factor,
           const FigurePlace& place = {});
  /// The same of a line that belongs to the next step that this program and rank print.
  void PutBeforeStep(const FigureField& field, const Printed& printed, double factor);
  /// The card's memory, from a figure and its share of the whole. The best of a rank stays.
  void PutWhole(const Printed& part, double factor, const Printed& percent,
                const FigurePlace& place);

  /// How many figures have been read.
  std::int64_t figures() const { return figures_; }
  std::vector<LoggedSeries> Take() &&;
  /// Figures of sources beyond the most that are kept.
  std::int64_t left_out() const { return left_out_; }

 private:
  struct Waiting {
    FigureField field;
    FigureSource source;
    LoggedPoint point;
    std::int64_t half = 0;
  };

  LoggedSeries* Find(const FigureField& field, const FigurePlace& place);
  LoggedSeries* FindAnywhere(const FigureField& field, const FigurePlace& place);
  void Store(LoggedSeries& series, const LoggedPoint& point, std::int64_t half);
  void TellStep(std::int64_t step);
  void KeepBounded();

  std::string_view program_;
  const FigureLine* line_ = nullptr;
  std::int64_t number_ = 0;
  std::int64_t figures_ = 0;
  std::vector<LoggedSeries> series_;
  HashMap<std::uint64_t, std::size_t> index_;
  /// By where a field's name lies and its rank, the series that it went into last.
  std::array<std::size_t, 256> recent_{};
  /// By a hash of whose they are.
  HashMap<std::uint64_t, std::vector<Waiting>> waiting_;
  std::size_t waiting_count_ = 0;
  /// By rank, how far off the best of its percentages is.
  std::vector<double> best_share_;
  std::size_t points_ = 0;
  std::int64_t left_out_ = 0;
};

}  // namespace plimsoll
