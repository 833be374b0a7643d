#include "job/file/forms.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "job/file/layout.h"

namespace plimsoll {
namespace {

/// A sum of terms is computed in floating point: so far from a whole number it is one.
constexpr double kWhole = 1e-3;
/// In relation to the values.
constexpr double kWholeShare = 1e-11;
/// A column that the others explain up to this share adds nothing.
constexpr double kNothing = 1e-9;

constexpr std::int64_t kMultiples[] = {2, 4, 8, 16, 32, 64, 128};

bool IsNearly(double a, double b) {
  return std::abs(a - b) <= kWhole + kWholeShare * std::max(std::abs(a), std::abs(b));
}

/// Least squares by orthogonal columns. Nothing where a column depends on those before it.
std::optional<std::vector<double>> Solve(std::vector<std::vector<double>> columns,
                                         std::vector<double> values) {
  const std::size_t n = columns.size();
  std::vector<std::vector<double>> upper(n, std::vector<double>(n, 0));
  std::vector<double> projected(n, 0);
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  for (std::size_t j = 0; j < n; ++j) {
    const double before = std::sqrt(dot(columns[j], columns[j]));
    for (std::size_t i = 0; i < j; ++i) {
      upper[i][j] = dot(columns[i], columns[j]);
      for (std::size_t r = 0; r < values.size(); ++r) columns[j][r] -= upper[i][j] * columns[i][r];
    }
    upper[j][j] = std::sqrt(dot(columns[j], columns[j]));
    if (upper[j][j] <= kNothing * before || before == 0) return std::nullopt;
    for (double& entry : columns[j]) entry /= upper[j][j];
    projected[j] = dot(columns[j], values);
    for (std::size_t r = 0; r < values.size(); ++r) values[r] -= projected[j] * columns[j][r];
  }
  for (std::size_t j = n; j-- > 0;) {
    for (std::size_t k = j + 1; k < n; ++k) projected[j] -= upper[j][k] * projected[k];
    projected[j] /= upper[j][j];
  }
  return projected;
}

}  // namespace

Forms::Forms(std::vector<std::string> dimensions, std::vector<Extent> points)
    : dimensions_(std::move(dimensions)), points_(std::move(points)) {
  const std::size_t n = dimensions_.size();
  const auto add = [&](std::initializer_list<std::size_t> of) {
    Term term{.exponents = std::vector<int>(n, 0)};
    for (const std::size_t d : of) ++term.exponents[d];
    terms_.push_back(std::move(term));
  };
  for (std::size_t d = 0; d < n; ++d) add({d});
  for (std::size_t d = 0; d < n; ++d) {
    for (std::size_t e = d + 1; e < n; ++e) add({d, e});
  }
  for (std::size_t d = 1; d < n; ++d) add({d, d});
  for (std::size_t d = 1; d < n; ++d) add({0, d, d});
  for (std::size_t d = 1; d < n; ++d) {
    for (std::size_t e = d + 1; e < n; ++e) add({0, d, e});
  }
  plain_ = terms_.size();
  for (std::size_t a = 0; a < plain_; ++a) {
    for (std::size_t b = a + 1; b < plain_; ++b) sets_.push_back({a, b});
  }
  for (std::size_t a = 0; a < plain_; ++a) {
    for (std::size_t b = a + 1; b < plain_; ++b) {
      for (std::size_t c = b + 1; c < plain_; ++c) sets_.push_back({a, b, c});
    }
  }
  for (const std::int64_t multiple : kMultiples) {
    for (const bool up : {true, false}) {
      for (std::size_t term = 1; term < plain_; ++term) {
        terms_.push_back({.exponents = terms_[term].exponents, .multiple = multiple, .up = up});
      }
    }
  }
}

FormId Forms::Add(std::vector<std::int64_t> values) {
  Form& form = forms_.emplace_back();
  form.values = std::move(values);
  Fit(form);
  return static_cast<FormId>(forms_.size() - 1);
}

Forms::Wide Forms::Of(const Term& term, const Extent& where) {
  Wide value = 1;
  for (std::size_t d = 0; d < term.exponents.size(); ++d) {
    const std::int64_t more = d > 0 && term.up ? term.multiple - 1 : 0;
    const std::int64_t size = d > 0 ? (where[d] + more) / term.multiple * term.multiple : where[d];
    for (int i = 0; i < term.exponents[d]; ++i) value *= size;
  }
  return value;
}

void Forms::Fit(Form& form) const {
  const auto same = [&](std::int64_t value) { return value == form.values.front(); };
  if (std::ranges::all_of(form.values, same)) return;
  for (std::size_t term = 0; term < plain_; ++term) {
    if (FitOne(form, term)) return;
  }
  for (const std::vector<std::size_t>& set : sets_) {
    // With as many terms as there are points any values are explained.
    if (set.size() + 1 < points_.size() && FitSome(form, set, /*must_explain=*/true)) return;
  }
  for (std::size_t term = plain_; term < terms_.size(); ++term) {
    if (FitOne(form, term)) return;
  }
  form.explained = false;
  // As many of the simplest as the points tell apart.
  std::vector<std::size_t> taken;
  for (std::size_t term = 0; term < plain_ && taken.size() + 1 < points_.size(); ++term) {
    taken.push_back(term);
    if (!FitSome(form, taken, /*must_explain=*/false)) taken.pop_back();
  }
  if (!taken.empty()) FitSome(form, taken, /*must_explain=*/false);
}

bool Forms::FitOne(Form& form, std::size_t term) const {
  // Between two points any term goes through both.
  std::size_t other = 0;
  for (std::size_t p = 1; p < points_.size() && other == 0; ++p) {
    if (form.values[p] != form.values.front()) other = p;
  }
  const Wide run = Past(term, points_[other]);
  const Wide rise = form.values[other] - form.values.front();
  if (run == 0) return false;
  for (std::size_t p = 1; p < points_.size(); ++p) {
    if (Wide{form.values[p] - form.values.front()} * run != rise * Past(term, points_[p])) {
      return false;
    }
  }
  form.terms = {term};
  form.point = other;
  return true;
}

bool Forms::FitSome(Form& form, const std::vector<std::size_t>& terms, bool must_explain) const {
  std::vector<std::vector<double>> columns;
  for (const std::size_t term : terms) {
    std::vector<double>& column = columns.emplace_back();
    for (std::size_t p = 1; p < points_.size(); ++p) {
      column.push_back(static_cast<double>(Past(term, points_[p])));
    }
  }
  std::vector<double> values;
  for (std::size_t p = 1; p < points_.size(); ++p) {
    values.push_back(static_cast<double>(form.values[p] - form.values.front()));
  }
  const auto factors = Solve(columns, values);
  if (!factors) return false;
  if (must_explain) {
    for (std::size_t p = 0; p < values.size(); ++p) {
      double sum = 0;
      for (std::size_t t = 0; t < terms.size(); ++t) sum += (*factors)[t] * columns[t][p];
      if (!IsNearly(sum, values[p])) return false;
    }
  }
  form.terms = terms;
  form.factors = *factors;
  return true;
}

Forms::Value Forms::Evaluate(const Form& form, const Extent& where) const {
  const Wide first = form.values.front();
  if (form.terms.empty()) return {first};
  if (form.factors.empty()) {
    const Wide run = Past(form.terms[0], points_[form.point]);
    const Wide product =
        Wide{form.values[form.point] - form.values.front()} * Past(form.terms[0], where);
    const Wide rest = product % run;
    const bool up = rest != 0 && (rest > 0) == (run > 0);
    return {first + product / run + (up ? 1 : 0), rest == 0};
  }
  double sum = 0;
  for (std::size_t t = 0; t < form.terms.size(); ++t) {
    sum += form.factors[t] * static_cast<double>(Past(form.terms[t], where));
  }
  constexpr auto kMost = static_cast<double>(kMostElements);
  sum = std::clamp(sum, -2 * kMost, 2 * kMost);
  const double nearest = std::nearbyint(sum);
  const bool exact = IsNearly(sum, nearest);
  return {first + static_cast<std::int64_t>(exact ? nearest : std::ceil(sum)), exact};
}

const std::int64_t* Forms::FindCaptured(const Form& form, const Extent& where) const {
  const auto found = std::ranges::find(points_, where);
  return found == points_.end() ? nullptr : &form.values[std::size_t(found - points_.begin())];
}

std::int64_t Forms::At(FormId id, const Extent& where) const {
  const Form& form = forms_[id];
  if (const std::int64_t* captured = FindCaptured(form, where)) return *captured;
  return static_cast<std::int64_t>(
      std::clamp<Wide>(Evaluate(form, where).whole, -kMostElements, kMostElements));
}

bool Forms::IsWhole(FormId id, const Extent& where) const {
  const Form& form = forms_[id];
  return FindCaptured(form, where) != nullptr || Evaluate(form, where).exact;
}

}  // namespace plimsoll
