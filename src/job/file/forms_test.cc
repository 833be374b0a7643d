#include "job/file/forms.h"

#include <gtest/gtest.h>

#include <functional>

#include "job/file/layout.h"

namespace plimsoll {
namespace {

const std::vector<Extent> kGrid = {{4, 128}, {8, 128}, {4, 192}, {8, 192}, {4, 256}};

using Function = std::function<std::int64_t(std::int64_t batch, std::int64_t length)>;

/// The form of a function, as the points of a capture tell it.
struct Told {
  Forms forms{{"batch", "length"}, kGrid};
  FormId id = 0;

  explicit Told(const Function& f) {
    std::vector<std::int64_t> values;
    for (const Extent& point : kGrid) values.push_back(f(point[0], point[1]));
    id = forms.Add(values);
  }
  std::int64_t At(std::int64_t batch, std::int64_t length) const {
    return forms.At(id, {batch, length});
  }
};

TEST(Forms, SumsOfFewTermsAreFoundAndExactFarAway) {
  const Function functions[] = {
      [](auto, auto) { return 7; },
      [](auto b, auto) { return 12 * b; },
      [](auto, auto s) { return 3 * s + 1; },
      [](auto b, auto s) { return 50257 * b * s * 4; },
      [](auto, auto s) { return s * s; },
      [](auto b, auto s) { return 12 * b * s * s * 4; },
      [](auto b, auto s) { return 5 * b + 768 * b * s; },
      [](auto b, auto s) { return b * (s / 8 + 1) * (s / 8 + 1); },
  };
  for (const Function& f : functions) {
    const Told told(f);
    EXPECT_TRUE(told.forms.IsExplained(told.id));
    for (const Extent& at : {Extent{1, 64}, {3, 448}, {64, 8192}, {8, 256}}) {
      EXPECT_EQ(told.At(at[0], at[1]), f(at[0], at[1])) << at[0] << " x " << at[1];
    }
  }
}

TEST(Forms, WhatKernelsRoundIsRounded) {
  Forms forms({"batch", "length"}, {{32, 464}, {32, 512}, {32, 460}, {32, 338}, {32, 306}});
  std::vector<std::int64_t> values;
  for (const Extent& point : forms.points()) values.push_back((point[1] + 31) / 32 * 32 * 12);
  const FormId id = forms.Add(values);
  EXPECT_TRUE(forms.IsExplained(id));
  EXPECT_EQ(forms.At(id, {32, 400}), 416 * 12);
  EXPECT_EQ(forms.At(id, {32, 385}), 416 * 12);
}

TEST(Forms, SizesThatAreNoWholeNumbersAreRoundedUpAndTold) {
  const Told told([](auto, auto s) { return s / 8; });
  EXPECT_EQ(told.At(4, 300), 38);
  EXPECT_FALSE(told.forms.IsWhole(told.id, {4, 300}));
  EXPECT_TRUE(told.forms.IsWhole(told.id, {4, 320}));
}

TEST(Forms, WhatNoFormExplainsIsExactWhereItWasCaptured) {
  Forms forms({"batch", "length"}, kGrid);
  const std::vector<std::int64_t> values = {17, 1203, 40, 5, 999};
  const FormId id = forms.Add(values);
  EXPECT_FALSE(forms.IsExplained(id));
  for (std::size_t p = 0; p < kGrid.size(); ++p) EXPECT_EQ(forms.At(id, kGrid[p]), values[p]);
}

TEST(Forms, NothingOverflows) {
  Forms forms({"batch", "length"}, kGrid);
  const FormId id = forms.Add({0, kMostElements, -kMostElements, kMostElements, 0});
  const FormId line = forms.Add({0, kMostElements, 0, kMostElements, 0});
  for (const FormId form : {id, line}) {
    const std::int64_t value = forms.At(form, {Forms::kLargestExtent, Forms::kLargestExtent});
    EXPECT_LE(std::abs(value), kMostElements);
  }
}

TEST(Forms, ThreeDimensionsAreToldApart) {
  std::vector<Extent> points = {{16, 512, 480}, {16, 480, 512}, {16, 416, 480}, {16, 512, 512},
                                {16, 320, 448}, {16, 480, 480}, {12, 512, 480}};
  Forms forms({"batch", "height", "width"}, points);
  const auto f = [](const Extent& e) { return e[0] * 64 * (e[1] / 4) * (e[2] / 4); };
  std::vector<std::int64_t> values;
  for (const Extent& point : points) values.push_back(f(point));
  const FormId id = forms.Add(values);
  const Extent at = {16, 256, 384};
  EXPECT_EQ(forms.At(id, at), f(at));
}

}  // namespace
}  // namespace plimsoll
