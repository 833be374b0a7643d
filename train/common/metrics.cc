#include "train/common/metrics.h"

#include <c10/util/Exception.h>

#include <iomanip>
#include <limits>
#include <sstream>

namespace plimsoll::train {
namespace {

thread_local int uncounted = 0;

}  // namespace

UncountedMetrics::UncountedMetrics() { ++uncounted; }
UncountedMetrics::~UncountedMetrics() { --uncounted; }

void Metrics::Add(const std::string& name, double value, double weight) {
  TORCH_CHECK(weight >= 0, "metric '", name, "' has a weight of ", weight);
  if (uncounted > 0) return;
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

std::string Metrics::Text() const {
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10);
  for (const auto& [name, sum] : sums_) {
    if (sum.weight > 0)
      text << sum.value / sum.weight << ' ' << sum.weight << ' ' << std::quoted(name) << '\n';
  }
  return text.str();
}

void Metrics::AddText(const std::string& text) {
  std::istringstream words(text);
  // Not >> for numbers: it does not read "nan".
  for (std::string value, weight, name; words >> value >> weight >> std::quoted(name);) {
    Add(name, std::stod(value), std::stod(weight));
  }
}

}  // namespace plimsoll::train
