#include "train/metrics.h"

#include <c10/util/Exception.h>

namespace plimsoll::train {

void Metrics::Add(const std::string& name, double value, double weight) {
  TORCH_CHECK(weight >= 0, "metric '", name, "' has a weight of ", weight);
  Sum& sum = sums_[name];
  sum.value += value * weight;
  sum.weight += weight;
}

std::map<std::string, double> Metrics::means() const {
  std::map<std::string, double> means;
  for (const auto& [name, sum] : sums_) {
    if (sum.weight > 0) means[name] = sum.value / sum.weight;
  }
  return means;
}

}  // namespace plimsoll::train
