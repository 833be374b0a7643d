#include "train/parallel/ranks/mesh.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/parallel/ranks/rank_processes_for_tests.h"

namespace plimsoll::train::mesh_test {
namespace {

const RankTaskNamed kMesh("mesh", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Mesh mesh(ranks, {.data = 2, .tensor = 2});
  Findings findings;
  for (const auto& [name, dimension] : {std::pair{"data", Dimension::kData},
                                        {"pipeline", Dimension::kPipeline},
                                        {"tensor", Dimension::kTensor}}) {
    at::Tensor sum = at::full({1}, 1 + launch.rank);
    mesh.along(dimension).Sum(sum);
    findings[name] = sum;
    findings[std::string(name) + " place"] = at::full({1}, mesh.coordinate(dimension));
  }
  std::string text;
  try {
    const Mesh wrong(ranks, {.data = 3, .tensor = 2});
  } catch (const std::exception& error) {
    text = error.what();
  }
  findings["told"] = at::full({1}, text.find("a mesh of 3 (data) x 1 (pipeline) x 2 (tensor) needs "
                                             "6 ranks, and there are 4.") == 0);
  return findings;
});

TEST(Mesh, GroupsShareAllOtherCoordinates) {
  // Of ranks 1 to 4, by place.
  const std::vector<std::vector<int>> data{{1 + 3, 0}, {2 + 4, 0}, {1 + 3, 1}, {2 + 4, 1}};
  const std::vector<std::vector<int>> tensor{{1 + 2, 0}, {1 + 2, 1}, {3 + 4, 0}, {3 + 4, 1}};
  const auto outcomes = RunRanks({.task = "mesh", .size = 4});
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
    const auto found = [&](const char* name) {
      return outcomes[rank].findings.at(name).item<int>();
    };
    EXPECT_EQ(found("data"), data[rank][0]);
    EXPECT_EQ(found("data place"), data[rank][1]);
    EXPECT_EQ(found("tensor"), tensor[rank][0]);
    EXPECT_EQ(found("tensor place"), tensor[rank][1]);
    EXPECT_EQ(found("pipeline"), 1 + rank);
    EXPECT_EQ(found("pipeline place"), 0);
    EXPECT_TRUE(found("told"));
  }
}

TEST(Mesh, OneAloneIsAMeshToo) {
  Ranks alone;
  Mesh mesh(alone, {});
  EXPECT_TRUE(mesh.along(Dimension::kTensor).alone());
  EXPECT_EQ(mesh.coordinate(Dimension::kData), 0);
  EXPECT_THROW(Mesh(alone, {.tensor = 0}), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::mesh_test
