// All ways to use several GPUs together: each rank of a job has its place in every dimension of a
// mesh. One noun, one grammar; each dimension is a transform of one rank's job into one rank's job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"
#include "job/parallel/context_parallel.h"
#include "job/parallel/data_parallel.h"
#include "job/parallel/expert_parallel.h"
#include "job/parallel/pipeline.h"
#include "job/parallel/sharding.h"
#include "job/parallel/tensor_parallel.h"

namespace plimsoll {

/// Ranks that follow each other are of one tensor-parallel group, then come those of a context, of
/// FSDP or DDP, copies of their shards, and the stages of the pipeline.
struct Mesh {
  std::optional<TensorParallel> tensor = {};
  /// FSDP shards over its ranks too, alone where no other is given.
  std::optional<ContextParallel> context = {};
  /// At most one of the two.
  std::optional<Sharding> fsdp = {};
  std::optional<DataParallel> ddp = {};
  /// Over ranks of FSDP, where that is given: it adds none to them.
  std::optional<ExpertParallel> expert = {};
  std::optional<Pipeline> pipeline = {};

  std::int64_t Ranks() const;
  /// Among how many a batch is divided: those of FSDP and DDP, and copies of shards; those of
  /// experts where none of these is given.
  std::int64_t DataRanks() const;
  /// How many dimensions have more than one rank.
  int Dimensions() const;
};

/// "fsdp=4:bf16,replicate=2,expert=4" or
/// "fsdp=4:bf16,replicate=2,context=2,tensor=2:sequence:loss,pipeline=2:8": any of them, in any
/// order, each as its own parser takes it.
Result<Mesh> ParseMesh(std::string_view text);
/// As ParseMesh takes it.
std::string MeshText(const Mesh& mesh);

/// Why no rank of it can be predicted from this variant.
std::optional<Error> CannotMesh(const Job& job, const Variant& variant, const Mesh& mesh);

/// The variant as one rank runs it: of the stages the one that `mesh.pipeline` says, or the
/// fullest. What is assumed goes to the job's notes.
Result<Variant> AddMesh(Job& job, const Variant& variant, const Mesh& mesh);

/// A few words: "FSDP2 on 4, tensor parallel on 2".
std::string DescribeMesh(const Mesh& mesh);

}  // namespace plimsoll
