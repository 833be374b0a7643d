#include "job/parallel/mesh.h"

#include <gtest/gtest.h>

namespace plimsoll::mesh_test {
namespace {

std::string ErrorOf(std::string_view text) {
  const Result<Mesh> mesh = ParseMesh(text);
  return mesh ? "" : mesh.error().message;
}

TEST(Mesh, IsPrintedAsItIsRead) {
  for (const char* text :
       {"fsdp=4", "ddp=8:views", "tensor=2", "tensor=8:sequence:loss:meta", "context=2:ring",
        "fsdp=4:keep:bf16,replicate=2,context=2,tensor=2:sequence,pipeline=2:8",
        "pipeline=4:8:cuts1-3-6", "pipeline=2:8:interleaved2:stage1", "fsdp=1:meta:bf16,context=8",
        "expert=4:meta", "fsdp=4,replicate=2,expert=8"}) {
    const Result<Mesh> mesh = ParseMesh(text);
    ASSERT_TRUE(mesh.ok()) << text << ": " << mesh.error().ToLine();
    EXPECT_EQ(MeshText(*mesh), text);
  }
}

TEST(Mesh, CountsRanks) {
  const Result<Mesh> mesh = ParseMesh("fsdp=4,replicate=2,context=3,tensor=2,pipeline=5:8");
  ASSERT_TRUE(mesh.ok());
  EXPECT_EQ(mesh->Ranks(), 4 * 2 * 3 * 2 * 5);
  EXPECT_EQ(mesh->DataRanks(), 8);
  EXPECT_EQ(mesh->Dimensions(), 5);
  // Experts are divided over ranks that are there already.
  EXPECT_EQ(ParseMesh("fsdp=8,expert=4")->Ranks(), 8);
  EXPECT_EQ(ParseMesh("expert=4")->Ranks(), 4);
}

TEST(Mesh, SaysWhatIsWrong) {
  EXPECT_EQ(ErrorOf("fsdp=4,ddp=2"), "a mesh has FSDP or DDP, not both");
  EXPECT_EQ(ErrorOf("tensor=2,tensor=4"), "the mesh has tensor twice");
  EXPECT_EQ(ErrorOf("tenser=2"), "'tenser' is no dimension of a mesh");
  EXPECT_EQ(ErrorOf("replicate=2"), "replicate= is for copies of FSDP's shards");
  EXPECT_EQ(ErrorOf("expert=1"), "'1' does not say how experts are divided");
  EXPECT_EQ(ErrorOf("expert=8:keep"), "'8:keep' does not say how experts are divided");
  EXPECT_EQ(ErrorOf("fsdp=8,expert=3"),
            "8 ranks that share a batch cannot be divided into groups of 3 for the experts");
  EXPECT_EQ(ErrorOf("fsdp=1"), "FSDP over one rank shards nothing");
  for (const char* text :
       {"", "tensor", "tensor=", "tensor=1", "tensor=2:loss:loss", "tensor=2,", "context=2:rings",
        "context=0", "pipeline=2", "pipeline=2:8:cuts", "pipeline=2:8:cuts1-2",
        "pipeline=3:8:cuts2-1", "pipeline=2:8:stage2", "fsdp=1048576,tensor=1048576"}) {
    EXPECT_FALSE(ParseMesh(text).ok()) << text;
  }
}

}  // namespace
}  // namespace plimsoll::mesh_test
