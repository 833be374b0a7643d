// The numbers of a job that was captured over more than the batch: the values of each at the points
// of the capture, and a form that goes through them. A form is a sum of few terms: the dimensions
// themselves, their products with each other, the square of each but the batch, and that square
// times the batch; or one of these with its dimensions rounded to a power of two, as kernels round
// and layers halve them. Of the forms that explain all points the one with the fewest terms is
// taken, so that points tell a product from a square.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job/file/number.h"

namespace plimsoll {

/// Where a job is asked about, by dimension.
using Extent = std::vector<std::int64_t>;

class Forms {
 public:
  /// No batch, length or side is larger.
  static constexpr std::int64_t kLargestExtent = std::int64_t{1} << 24;
  static constexpr std::size_t kMostDimensions = 4;
  static constexpr std::size_t kMostPoints = 4096;

  /// There is at least one point, and each has a value by dimension.
  Forms(std::vector<std::string> dimensions, std::vector<Extent> points);

  const std::vector<std::string>& dimensions() const { return dimensions_; }
  const std::vector<Extent>& points() const { return points_; }
  std::size_t size() const { return forms_.size(); }

  /// One value a point, none of them beyond kMostElements.
  FormId Add(std::vector<std::int64_t> values);
  /// At a point of the capture.
  std::int64_t Captured(const Number& number, std::size_t point) const {
    return number.form() == kNoForm ? number.least() : forms_[number.form()].values[point];
  }
  /// Exact at the points of the capture; what is no whole number elsewhere is rounded up, as most
  /// kernels that halve an odd side do.
  std::int64_t At(FormId form, const Extent& where) const;
  /// Whether it comes out as a whole number there.
  bool IsWhole(FormId form, const Extent& where) const;
  /// Whether fewer terms than there are points explain it. Else it is drawn through them.
  bool IsExplained(FormId form) const { return forms_[form].explained; }

 private:
  using Wide = __int128;
  struct Term {
    /// Of each dimension.
    std::vector<int> exponents;
    /// All but the batch are rounded to a multiple of this, up or down.
    std::int64_t multiple = 1;
    bool up = true;
  };

  struct Form {
    std::vector<std::int64_t> values;
    std::vector<std::size_t> terms;
    /// By term, of its distance from the first point.
    std::vector<double> factors;
    /// Of a single term, exactly: so much more at this point than at the first.
    std::size_t point = 0;
    bool explained = true;
  };
  struct Value {
    Wide whole = 0;
    bool exact = true;
  };

  static Wide Of(const Term& term, const Extent& where);
  /// Of a term, at a point, less that at the first.
  Wide Past(std::size_t term, const Extent& where) const {
    return Of(terms_[term], where) - Of(terms_[term], points_.front());
  }
  void Fit(Form& form) const;
  bool FitOne(Form& form, std::size_t term) const;
  bool FitSome(Form& form, const std::vector<std::size_t>& terms, bool must_explain) const;
  Value Evaluate(const Form& form, const Extent& where) const;
  const std::int64_t* FindCaptured(const Form& form, const Extent& where) const;

  std::vector<std::string> dimensions_;
  std::vector<Extent> points_;
  /// Those that are not rounded first.
  std::vector<Term> terms_;
  std::size_t plain_ = 0;
  /// Sets of two and three terms, in the order in which they are tried.
  std::vector<std::vector<std::size_t>> sets_;
  std::vector<Form> forms_;
};

}  // namespace plimsoll
