#include "job/answer/lengths.h"

#include <gtest/gtest.h>

namespace plimsoll::lengths_test {
namespace {

FrontierPoint Point(std::int64_t length, std::int64_t batch, double step_us,
                    const SampleUnit& unit) {
  return {.length = length,
          .sure = {.batch = batch, .samples = batch, .step_us = step_us},
          .most = batch,
          .in_sample = unit.OfSample(length)};
}

TEST(Lengths, SidesOfImagesAreCountedInPixels) {
  for (const char* name : {"side", "height", "size"}) {
    EXPECT_EQ(UnitOf(name).name, "pixels") << name;
    EXPECT_EQ(UnitOf(name).OfSample(224), 224 * 224) << name;
  }
  for (const char* name : {"length", "block_size", "frames", ""}) {
    EXPECT_EQ(UnitOf(name).name, "tokens") << name;
    EXPECT_EQ(UnitOf(name).OfSample(224), 224) << name;
  }
}

TEST(Lengths, MostAndFastestGoByTheUnit) {
  // Twice the side at a third of the batch: fewer of the side, more pixels.
  Frontier tokens{.name = "length"};
  Frontier pixels{.name = "side"};
  for (Frontier* frontier : {&tokens, &pixels}) {
    frontier->points = {Point(64, 30, 1000, frontier->Unit()),
                        Point(128, 10, 1000, frontier->Unit()), Point(256, 0, 0, frontier->Unit())};
  }
  EXPECT_EQ(tokens.Most()->length, 64);
  EXPECT_EQ(tokens.Fastest()->length, 64);
  EXPECT_EQ(pixels.Most()->length, 128);
  EXPECT_EQ(pixels.Fastest()->length, 128);
  EXPECT_EQ(pixels.Fastest()->PerSecond(), 10 * 128 * 128 * 1e3);
}

TEST(Lengths, NothingIsBestWhereNothingFits) {
  const Frontier none{.name = "length", .points = {Point(64, 0, 0, UnitOf("length"))}};
  EXPECT_EQ(none.Most(), nullptr);
  EXPECT_EQ(none.Fastest(), nullptr);
}

TEST(Lengths, ApartAsThoseOfTheCapture) {
  EXPECT_EQ(LengthsApart({128, 192, 256}), 64);
  EXPECT_EQ(LengthsApart({100, 101, 200}), 1);
}

}  // namespace
}  // namespace plimsoll::lengths_test
