// Figures beside the loss (accuracy, intersection over union) that count each sample once, however
// often a step was tried.
#pragma once

#include <map>
#include <string>

namespace plimsoll::train {

/// The loss function adds to it; Trainer drops what belongs to trials and to attempts that failed.
class Metrics {
 public:
  /// `value` is a mean over `weight` samples, tokens or pixels.
  void Add(const std::string& name, double value, double weight = 1);

  /// The means so far.
  std::map<std::string, double> means() const;
  /// For another process, and what it makes of it.
  std::string Text() const;
  void AddText(const std::string& text);
  bool empty() const { return sums_.empty(); }
  void Clear() { sums_.clear(); }

 private:
  struct Sum {
    double value = 0;
    double weight = 0;
  };
  std::map<std::string, Sum> sums_;
};

/// RAII guard: on this thread nothing is added; what is computed belongs to no sample.
class UncountedMetrics {
 public:
  UncountedMetrics();
  ~UncountedMetrics();
  UncountedMetrics(const UncountedMetrics&) = delete;
  UncountedMetrics& operator=(const UncountedMetrics&) = delete;
};

}  // namespace plimsoll::train
