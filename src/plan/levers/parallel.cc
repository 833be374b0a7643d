// Several GPUs: DistributedDataParallel and ZeRO, FSDP2, a pipeline of stages, or a mesh of them
// and tensor parallelism.
#include <fmt/format.h>

#include <variant>

#include "job/parallel/data_parallel.h"
#include "job/parallel/fully_sharded.h"
#include "job/parallel/mesh.h"
#include "job/parallel/pipeline.h"
#include "job/parallel/sharding.h"
#include "job/parallel/tensor_roles.h"
#include "job/transforms/shard_groups.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

constexpr std::string_view kForms =
    "ddp, ddp:4, ddp:4:views, zero1:4, zero2:4, fsdp:4, fsdp:4:keep, fsdp:4:bf16, pipeline:4:16, "
    "mesh:fsdp=4,tensor=2:sequence,pipeline=2:8";

struct Parallel {
  std::variant<DataParallel, Sharding, Pipeline, Mesh> way;
  /// Told nothing but that it is DDP: with what the script tells it.
  bool as_script_has = false;

  const Sharding* sharding() const { return std::get_if<Sharding>(&way); }
  const Pipeline* pipeline() const { return std::get_if<Pipeline>(&way); }
  const DataParallel* data_parallel() const { return std::get_if<DataParallel>(&way); }
  const Mesh* mesh() const { return std::get_if<Mesh>(&way); }
};

std::string ParallelText(const Parallel& parallel) {
  if (parallel.as_script_has) return "ddp";
  if (const Sharding* sharding = parallel.sharding()) return "fsdp:" + ShardingText(*sharding);
  if (const Pipeline* pipeline = parallel.pipeline()) return "pipeline:" + PipelineText(*pipeline);
  if (const Mesh* mesh = parallel.mesh()) return "mesh:" + MeshText(*mesh);
  const DataParallel& ddp = *parallel.data_parallel();
  const bool zero = ddp.zero != DataParallel::Zero::kNothing;
  return (zero ? "" : "ddp:") + DataParallelText(ddp);
}

LeverValue ParallelValue(Parallel parallel) {
  std::string text = ParallelText(parallel);
  return {std::move(text), std::move(parallel)};
}

template <typename T>
Result<LeverValue> AsValue(const Result<T>& parsed) {
  if (!parsed) return parsed.error();
  return ParallelValue({.way = *parsed});
}

/// A mesh of one dimension that has a form of its own is that.
Result<LeverValue> ParseMeshValue(std::string_view text) {
  const Result<Mesh> mesh = ParseMesh(text);
  if (!mesh) return mesh.error();
  if (mesh->Dimensions() == 1) {
    if (mesh->fsdp) return ParallelValue({.way = *mesh->fsdp});
    if (mesh->ddp) return ParallelValue({.way = *mesh->ddp});
    if (mesh->pipeline) return ParallelValue({.way = *mesh->pipeline});
  }
  return ParallelValue({.way = *mesh});
}

Result<LeverValue> ParseWay(std::string_view text) {
  if (text == "ddp") return DataParallelAsWritten();
  if (text.starts_with("ddp:")) return AsValue(ParseDataParallel(text.substr(4)));
  if (text.starts_with("zero")) return AsValue(ParseDataParallel(text));
  if (text.starts_with("fsdp:")) return AsValue(ParseSharding(text.substr(5)));
  if (text.starts_with("pipeline:")) return AsValue(ParsePipeline(text.substr(9)));
  if (text.starts_with("mesh:")) return ParseMeshValue(text.substr(5));
  return Error{.message = fmt::format("'{}' is no way to train on several GPUs", text),
               .hint = std::string(kForms)};
}

/// Null where the choice has one GPU.
const Parallel* WayOf(const Choice& choice) {
  const LeverValue* const value = choice.Find(kParallelLever.name);
  return value == nullptr ? nullptr : &value->As<Parallel>();
}

/// Alone, or as a dimension of a mesh; null where there is none.
const Sharding* ShardingOf(const Parallel& parallel) {
  const Mesh* const mesh = parallel.mesh();
  if (mesh != nullptr) return mesh->fsdp ? &*mesh->fsdp : nullptr;
  return parallel.sharding();
}

const Pipeline* PipelineOf(const Parallel& parallel) {
  const Mesh* const mesh = parallel.mesh();
  if (mesh != nullptr) return mesh->pipeline ? &*mesh->pipeline : nullptr;
  return parallel.pipeline();
}

Numerics NumericsOfWay(const Job&, const LeverValue& value) {
  const Sharding* const sharding = ShardingOf(value.As<Parallel>());
  const Mesh* const mesh = value.As<Parallel>().mesh();
  const bool divided = mesh != nullptr && mesh->tensor;
  return divided || (sharding != nullptr && sharding->policy) ? Numerics::kRounding
                                                              : Numerics::kSame;
}

bool SuitsSharding(const Job& job, const Variant& variant, const LeverValue& value) {
  const Sharding* const sharding = ShardingOf(value.As<Parallel>());
  return sharding == nullptr || !CannotShard(job, variant, *sharding);
}

/// Sequences from this length on are worth dividing.
constexpr std::int64_t kLongSequence = 8192;

/// FSDP over what the other dimensions leave of the GPUs.
LeverValue MeshValue(Mesh mesh, const PlanRequest& request, std::optional<MixedPrecision> policy) {
  const std::int64_t left = request.gpus / mesh.Ranks();
  if (left > 1) mesh.fsdp = Sharding{.ranks = left, .policy = policy};
  return ParallelValue({.way = std::move(mesh)});
}

/// Divisors of the number of GPUs: tensor parallelism within a machine, a few stages, parts of long
/// sequences.
void AddMeshes(const PlanRequest& request, const Variant& variant,
               std::optional<MixedPrecision> policy, std::vector<LeverValue>& values) {
  const std::int64_t in_a_node = std::min<std::int64_t>(
      request.options.cluster.gpus_in_a_node,
      std::max<std::int64_t>(1, request.gpus / std::max<std::int64_t>(1, request.nodes)));
  std::vector<TensorParallel> tensors;
  std::int64_t positions = 0;
  for (const std::int64_t ranks : {2, 4, 8}) {
    if (ranks > in_a_node || request.gpus % ranks != 0) continue;
    const Result<TensorRoles> roles = FindTensorRoles(request.job, variant, ranks);
    if (!roles) break;
    positions = roles->positions;
    tensors.push_back({.ranks = ranks,
                       .sequence = positions > 0 && positions % ranks == 0,
                       .loss = !roles->heads.empty()});
  }
  // The narrowest and the widest: what is between takes as much memory as is between.
  if (tensors.size() > 2) tensors.erase(tensors.begin() + 1, tensors.end() - 1);
  for (const TensorParallel& tensor : tensors) {
    values.push_back(MeshValue({.tensor = tensor}, request, policy));
  }
  const std::int64_t context = std::min<std::int64_t>(4, request.gpus);
  if (positions >= kLongSequence && request.gpus % context == 0) {
    values.push_back(MeshValue({.context = ContextParallel{.ranks = context}}, request, policy));
  }
  const std::size_t blocks = ShardGroups(request.job, variant).all().size() - 1;
  const Pipeline pipeline{.stages = 2, .micro_batches = 8};
  if (blocks < 2 || request.gpus % 4 != 0) return;
  values.push_back(MeshValue({.pipeline = pipeline}, request, policy));
  if (tensors.empty() || request.gpus % (2 * tensors.back().ranks) != 0) return;
  values.push_back(MeshValue({.tensor = tensors.back(), .pipeline = pipeline}, request, policy));
}

std::vector<LeverValue> WaysWorthTrying(const PlanRequest& request, const Variant& of) {
  if (request.gpus == 1) return {};
  const std::int64_t n = request.gpus;
  std::vector<LeverValue> values = {
      DataParallelValue(n),
      ParallelValue({.way = DataParallel{.ranks = n, .zero = DataParallel::Zero::kState}}),
      ParallelValue({.way = Sharding{.ranks = n}}),
      ParallelValue({.way = Sharding{.ranks = n, .keep = Sharding::Keep::kAll}})};
  LeverValue policy = ParallelValue({.way = Sharding{.ranks = n, .policy = MixedPrecision{}}});
  const Result<std::size_t> variant =
      VariantFor(request.job, Choice{}.With(kParallelLever.name, policy));
  if (variant && SuitsSharding(request.job, request.job.variants[*variant], policy)) {
    values.push_back(std::move(policy));
    AddMeshes(request, request.job.variants[*variant], MixedPrecision{}, values);
  } else {
    AddMeshes(request, of, std::nullopt, values);
  }
  return values;
}

std::string DescribeWay(const Job&, const Choice&, const LeverValue& value) {
  const auto& parallel = value.As<Parallel>();
  if (const Mesh* mesh = parallel.mesh()) return DescribeMesh(*mesh);
  if (const Pipeline* pipeline = parallel.pipeline()) {
    return fmt::format("pipeline of {} stages, {} micro-batches", pipeline->stages,
                       pipeline->micro_batches);
  }
  if (const Sharding* sharding = parallel.sharding()) {
    return fmt::format("FSDP2{} on {} GPUs", sharding->policy ? " computing in 16 bit" : "",
                       sharding->ranks);
  }
  const DataParallel& ddp = *parallel.data_parallel();
  const std::string_view name = ddp.zero == DataParallel::Zero::kNothing ? "DDP"
                                : ddp.zero == DataParallel::Zero::kState ? "ZeRO-1"
                                                                         : "ZeRO-2";
  return fmt::format("{} on {} GPUs", name, ddp.ranks);
}

LeverFields FieldsOf(const DataParallel& ddp) {
  const std::string_view kind = ddp.zero == DataParallel::Zero::kNothing ? "ddp"
                                : ddp.zero == DataParallel::Zero::kState ? "zero1"
                                                                         : "zero2";
  return {{"kind", std::string(kind)}, {"ranks", ddp.ranks}, {"views", ddp.views}};
}

LeverFields FieldsOf(const Sharding& sharding) {
  const std::string_view keep = sharding.keep == Sharding::Keep::kNone  ? "none"
                                : sharding.keep == Sharding::Keep::kAll ? "all"
                                                                        : "last";
  const bool half = sharding.policy && sharding.policy->param == DType::kFloat16;
  return {{"kind", std::string("fsdp")},
          {"ranks", std::int64_t{sharding.ranks}},
          {"keep", std::string(keep)},
          {"meta", sharding.meta},
          {"compute", std::string(!sharding.policy ? ""
                                  : half           ? "fp16"
                                                   : "bf16")}};
}

LeverFields FieldsOf(const Pipeline& pipeline) {
  return {{"kind", std::string("pipeline")},
          {"ranks", std::int64_t{pipeline.stages}},
          {"micro_batches", std::int64_t{pipeline.micro_batches}},
          {"chunks", std::int64_t{pipeline.chunks}}};
}

LeverFields FieldsOf(const Mesh& mesh) {
  LeverFields fields = {{"kind", std::string("mesh")}, {"ranks", mesh.Ranks()}};
  if (mesh.ddp) fields.push_back({"ddp", mesh.ddp->ranks});
  if (mesh.fsdp) {
    fields.push_back({"fsdp", mesh.fsdp->ranks});
    fields.push_back({"replicate", mesh.fsdp->replicas});
  }
  if (mesh.tensor) {
    fields.push_back({"tensor", mesh.tensor->ranks});
    fields.push_back({"sequence", mesh.tensor->sequence});
    fields.push_back({"loss", mesh.tensor->loss});
  }
  if (mesh.expert) fields.push_back({"expert", mesh.expert->ranks});
  if (mesh.context) fields.push_back({"context", mesh.context->ranks});
  if (mesh.pipeline) {
    fields.push_back({"pipeline", std::int64_t{mesh.pipeline->stages}});
    fields.push_back({"micro_batches", std::int64_t{mesh.pipeline->micro_batches}});
  }
  return fields;
}

LeverFields ParallelFields(const Job&, const LeverValue& value) {
  return std::visit([](const auto& way) { return FieldsOf(way); }, value.As<Parallel>().way);
}

std::vector<std::string> ShardingCode(const Sharding& sharding) {
  std::string arguments;
  if (sharding.keep == Sharding::Keep::kAll) arguments += ", reshard_after_forward=False";
  if (sharding.policy) {
    arguments += ", mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)";
  }
  return {"from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
          fmt::format("for block in model.blocks: fully_shard(block{})  # its list of blocks",
                      arguments),
          fmt::format("fully_shard(model{})  # before the optimizer is made", arguments)};
}

std::vector<std::string> DataParallelCode(const DataParallel& ddp) {
  if (ddp.zero == DataParallel::Zero::kGradients) {
    return {"# DeepSpeed: \"zero_optimization\": {\"stage\": 2}"};
  }
  std::vector<std::string> lines = {
      fmt::format("model = torch.nn.parallel.DistributedDataParallel(model{})",
                  ddp.views ? ", gradient_as_bucket_view=True" : "")};
  if (ddp.zero == DataParallel::Zero::kState) {
    lines.emplace_back(
        "optimizer = torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), ...)");
  }
  return lines;
}

std::vector<std::string> PipelineCode(const Pipeline& pipeline) {
  return {fmt::format("schedule = torch.distributed.pipelining.{}(stage, n_microbatches={})",
                      pipeline.chunks > 1 ? "ScheduleInterleaved1F1B" : "Schedule1F1B",
                      pipeline.micro_batches)};
}

std::vector<std::string> MeshCode(const Mesh& mesh) {
  std::vector<std::string> lines;
  if (mesh.tensor) {
    lines.emplace_back(
        "parallelize_module(block, mesh[\"tp\"], {...})  # ColwiseParallel() into attention and "
        "MLP, RowwiseParallel() out of them");
  }
  if (mesh.expert) {
    lines.emplace_back(
        "# each rank keeps its share of the experts: all_to_all_single_autograd(tokens, None, "
        "None, "
        "mesh[\"ep\"].get_group()) before and after them, ignored_params= for fully_shard");
  }
  if (mesh.context) {
    lines.emplace_back(
        "with context_parallel(mesh[\"cp\"], buffers=[x, y], buffer_seq_dims=[1, 1]):  # around "
        "forward, loss and backward");
  }
  if (mesh.fsdp) {
    for (std::string& line : ShardingCode(*mesh.fsdp)) lines.push_back(std::move(line));
  }
  if (mesh.ddp) {
    for (std::string& line : DataParallelCode(*mesh.ddp)) lines.push_back(std::move(line));
  }
  if (mesh.pipeline) {
    for (std::string& line : PipelineCode(*mesh.pipeline)) lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> CodeOfWay(const Job&, const Choice&, const LeverValue& value) {
  const auto& parallel = value.As<Parallel>();
  std::vector<std::string> lines;
  std::int64_t ranks = 1;
  if (const Sharding* sharding = parallel.sharding()) {
    lines = ShardingCode(*sharding);
    ranks = sharding->ranks;
  } else if (const Mesh* mesh = parallel.mesh()) {
    lines = MeshCode(*mesh);
    ranks = mesh->Ranks();
  } else if (const Pipeline* pipeline = parallel.pipeline()) {
    lines = PipelineCode(*pipeline);
    ranks = pipeline->stages;
  } else {
    lines = DataParallelCode(*parallel.data_parallel());
    ranks = parallel.data_parallel()->ranks;
  }
  lines.insert(lines.begin(), fmt::format("torchrun --nproc-per-node {} train.py", ranks));
  return lines;
}

/// With what the script tells DistributedDataParallel.
DataParallel AsScriptHas(const Job& job) {
  const DataParallel plain;
  const auto told = ParseDataParallel(fmt::format("{}{}", plain.ranks, job.data_parallel));
  return told ? *told : plain;
}

std::string DescribeGloo(const Parallel& parallel) {
  const DataParallel* const ddp = parallel.data_parallel();
  const bool zero = ddp != nullptr && ddp->zero != DataParallel::Zero::kNothing;
  return fmt::format(
      "the ranks exchange tensors by gloo: what it copies on the GPU is {}counted, and nothing for "
      "NCCL; the time is as with NCCL",
      zero ? "not " : "");
}

std::optional<Error> RewriteJob(Job& job, Variant& variant, const LeverValue& value) {
  const auto& parallel = value.As<Parallel>();
  if (const Mesh* mesh = parallel.mesh()) {
    Result<Variant> rank = AddMesh(job, variant, *mesh);
    if (!rank) return rank.error();
    variant = std::move(*rank);
  } else if (const Sharding* sharding = parallel.sharding()) {
    if (std::optional<Error> error = CannotShard(job, variant, *sharding)) return error;
    Note(job, DescribeSharding(job, variant, *sharding));
    variant = AddFullySharded(job, variant, *sharding);
  } else if (const Pipeline* pipeline = parallel.pipeline()) {
    const Result<int> shown = ShownStage(job, variant, *pipeline);
    if (!shown) return shown.error();
    Note(job, DescribePipeline(job, variant, *pipeline, *shown));
    // What stages send each other is on GPUs, where gloo cannot take it from.
    job.backend = Backend::kNccl;
    Pipeline of_stage = *pipeline;
    of_stage.stage = *shown;
    Result<Variant> stage = AddPipeline(job, variant, of_stage);
    if (!stage) return stage.error();
    variant = std::move(*stage);
  } else {
    const DataParallel ddp = parallel.as_script_has ? AsScriptHas(job) : *parallel.data_parallel();
    if (std::string text = DescribeDataParallel(ddp); !text.empty()) Note(job, std::move(text));
    variant = AddDataParallel(job, variant, ddp);
  }
  if (job.backend == Backend::kGloo) Note(job, DescribeGloo(parallel));
  return std::nullopt;
}

}  // namespace

LeverValue DataParallelValue(std::int64_t ranks) {
  return ParallelValue({.way = DataParallel{.ranks = ranks}});
}

LeverValue DataParallelAsWritten() {
  return ParallelValue({.way = DataParallel{}, .as_script_has = true});
}

bool SplitsTheModel(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  return parallel != nullptr && parallel->data_parallel() == nullptr;
}

bool DividesTensors(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  const Mesh* const mesh = parallel == nullptr ? nullptr : parallel->mesh();
  return mesh != nullptr && (mesh->tensor || mesh->context);
}

bool ComputesUnderAPolicy(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  const Sharding* const sharding = parallel == nullptr ? nullptr : ShardingOf(*parallel);
  return sharding != nullptr && sharding->policy.has_value();
}

std::int64_t RanksOf(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  if (parallel == nullptr) return 1;
  if (const Sharding* sharding = parallel->sharding()) return sharding->ranks;
  if (const Mesh* mesh = parallel->mesh()) return mesh->pipeline ? 0 : mesh->Ranks();
  if (parallel->as_script_has || parallel->pipeline() != nullptr) return 0;
  return parallel->data_parallel()->ranks;
}

namespace {

/// Each of them is predicted by itself.
constexpr int kMostStagesShown = 64;

}  // namespace

std::vector<Choice> ChoicesOfRanks(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  const Pipeline* const pipeline = parallel == nullptr ? nullptr : PipelineOf(*parallel);
  if (pipeline == nullptr || pipeline->stage || pipeline->stages > kMostStagesShown) return {};
  std::vector<Choice> choices;
  for (int stage = 0; stage < pipeline->stages; ++stage) {
    Parallel of_stage = *parallel;
    Mesh* const mesh = std::get_if<Mesh>(&of_stage.way);
    (mesh != nullptr ? *mesh->pipeline : std::get<Pipeline>(of_stage.way)).stage = stage;
    choices.push_back(choice.With(kParallelLever.name, ParallelValue(std::move(of_stage))));
  }
  return choices;
}

double ShareOfWaiting(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  const Pipeline* const pipeline = parallel == nullptr ? nullptr : PipelineOf(*parallel);
  if (pipeline == nullptr) return 0;
  return double(pipeline->stages - 1) / (pipeline->micro_batches * pipeline->chunks);
}

std::int64_t RanksOfAStage(const Choice& choice) {
  const Parallel* const parallel = WayOf(choice);
  const Mesh* const mesh = parallel == nullptr ? nullptr : parallel->mesh();
  return mesh != nullptr && mesh->pipeline ? mesh->Ranks() / mesh->pipeline->stages : 1;
}

std::int64_t SamplesOf(const Job& job, const Choice& choice) {
  const std::int64_t samples = choice.batch * MicroBatchesOf(job, choice);
  const Parallel* const parallel = WayOf(choice);
  if (parallel == nullptr) return samples;
  if (const Sharding* sharding = parallel->sharding()) return samples * sharding->ranks;
  if (const Pipeline* pipeline = parallel->pipeline()) return samples * pipeline->micro_batches;
  if (const Mesh* mesh = parallel->mesh()) {
    return samples * mesh->DataRanks() * (mesh->pipeline ? mesh->pipeline->micro_batches : 1);
  }
  return samples * parallel->data_parallel()->ranks;
}

const PlanLever kParallelLever = {
    .name = "parallel",
    .values = kForms,
    .parse = ParseWay,
    .numerics = NumericsOfWay,
    .worth_trying = WaysWorthTrying,
    .suits = SuitsSharding,
    .describe = DescribeWay,
    .fields = ParallelFields,
    .code = CodeOfWay,
    .rewrite = RewriteJob,
};

}  // namespace plimsoll
