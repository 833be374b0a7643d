#include "answer/owner.h"

#include <gtest/gtest.h>

namespace plimsoll::owner_test {
namespace {

std::vector<std::string> Names(const std::vector<Owner>& owners) {
  std::vector<std::string> names;
  for (const Owner& owner : owners) names.push_back(owner.name);
  return names;
}

TEST(Owner, IndicesThatDifferAreFolded) {
  const std::vector<Owner> owners = FoldedOwners({
      {.name = "trainer.callbacks[3].outputs[0]", .bytes = 4, .count = 1},
      {.name = "trainer.callbacks[3].outputs[1]", .bytes = 5, .count = 2},
      {.name = "batch", .bytes = 20, .count = 1},
  });
  EXPECT_EQ(Names(owners), (std::vector<std::string>{"batch", "trainer.callbacks[3].outputs[*]"}));
  EXPECT_EQ(owners[1].bytes, 9);
  EXPECT_EQ(owners[1].count, 3);
}

TEST(Owner, KeysAndHalfIndicesStayAsTheyAre) {
  const std::vector<Owner> owners = FoldedOwners({
      {.name = "opt.state[*]['exp_avg'][1", .bytes = 1, .count = 1},
      {.name = "kept['a'][]", .bytes = 1, .count = 1},
      {.name = "kept['b'][]", .bytes = 1, .count = 1},
      {.name = "", .bytes = 1, .count = 1},
  });
  EXPECT_EQ(Names(owners), (std::vector<std::string>{"", "kept['a'][]", "kept['b'][]",
                                                     "opt.state[*]['exp_avg'][1"}));
}

TEST(Owner, OneKeepsItsIndex) {
  EXPECT_EQ(Names(FoldedOwners({{.name = "losses[7]", .bytes = 1, .count = 1}})),
            std::vector<std::string>{"losses[7]"});
}

TEST(Owner, TextSaysHowMuchWhereItIsNotAll) {
  const Owner owner{.name = "losses[*]", .bytes = kMiB, .count = 2};
  EXPECT_EQ(OwnerText(owner, kMiB), "held by losses[*]");
  EXPECT_EQ(OwnerText(owner, 2 * kMiB), "1.00 MiB held by losses[*]");
}

}  // namespace
}  // namespace plimsoll::owner_test
