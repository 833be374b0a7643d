#include "job/parallel/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/suggest.h"
#include "base/text.h"
#include "job/parallel/collective.h"
#include "job/parallel/fully_sharded.h"
#include "job/parallel/tensor_roles.h"
#include "job/transforms/shard_groups.h"

namespace plimsoll {
namespace {

constexpr std::string_view kMeshHint =
    "dimensions with a comma between them: ddp=N or fsdp=N[:keep][:meta][:bf16], replicate=N "
    "(copies "
    "of shards), expert=N[:meta], context=N[:ring], tensor=N[:sequence][:loss][:meta], "
    "pipeline=STAGES:MICRO_BATCHES[:interleavedK][:cuts1-3-6]";

std::optional<std::int64_t> ParseRanks(std::string_view text) {
  std::int64_t ranks = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, ranks);
  if (error != std::errc() || at != end || ranks < 2 || ranks > kMostRanks) return std::nullopt;
  return ranks;
}

Result<TensorParallel> ParseTensorParallel(std::string_view text) {
  TensorParallel tensor;
  const std::string_view given = text;
  const std::optional<std::int64_t> ranks = ParseRanks(text.substr(0, text.find(':')));
  text.remove_prefix(std::min(text.find(':'), text.size()));
  bool good = ranks.has_value();
  while (good && !text.empty()) {
    const std::string_view form = text.substr(0, text.find(':', 1));
    bool* const said = form == ":sequence" ? &tensor.sequence
                       : form == ":loss"   ? &tensor.loss
                       : form == ":meta"   ? &tensor.meta
                                           : nullptr;
    good = said != nullptr && !std::exchange(*said, true);
    text.remove_prefix(form.size());
  }
  tensor.ranks = ranks.value_or(2);
  if (good) return tensor;
  return Error{.message = fmt::format("'{}' does not say how tensors are divided", given),
               .hint =
                   "2 or more, then :sequence for SequenceParallel between the layers, :loss for "
                   "loss_parallel, :meta for a model that is built on the meta device"};
}

Result<ContextParallel> ParseContextParallel(std::string_view text) {
  const std::string_view form = text.substr(std::min(text.find(':'), text.size()));
  const std::optional<std::int64_t> ranks = ParseRanks(text.substr(0, text.find(':')));
  if (ranks && (form.empty() || form == ":ring")) {
    return ContextParallel{.ranks = *ranks, .ring = !form.empty()};
  }
  return Error{.message = fmt::format("'{}' does not say how sequences are divided", text),
               .hint = "2 or more, then :ring for set_rotate_method(\"alltoall\")"};
}

Result<ExpertParallel> ParseExpertParallel(std::string_view text) {
  const std::string_view form = text.substr(std::min(text.find(':'), text.size()));
  const std::optional<std::int64_t> ranks = ParseRanks(text.substr(0, text.find(':')));
  if (ranks && (form.empty() || form == ":meta")) {
    return ExpertParallel{.ranks = *ranks, .meta = !form.empty()};
  }
  return Error{.message = fmt::format("'{}' does not say how experts are divided", text),
               .hint = "2 or more, then :meta for a model that is built on the meta device"};
}

std::string TensorParallelText(const TensorParallel& tensor) {
  return fmt::format("{}{}{}{}", tensor.ranks, tensor.sequence ? ":sequence" : "",
                     tensor.loss ? ":loss" : "", tensor.meta ? ":meta" : "");
}

template <typename T>
std::optional<Error> Take(Result<T> parsed, std::optional<T>& to) {
  if (!parsed) return parsed.error();
  to = std::move(*parsed);
  return std::nullopt;
}

Error Twice(std::string_view name) {
  return Error{.message = fmt::format("the mesh has {} twice", name), .hint = "give it once"};
}

/// Of one rank where the ranks of a context are all that share weights: "1:meta:bf16".
Result<Sharding> ParseShardingOfMesh(std::string_view text) {
  if (text != "1" && !text.starts_with("1:")) return ParseSharding(text);
  Result<Sharding> sharding = ParseSharding("2" + std::string(text.substr(1)));
  if (sharding) sharding->ranks = 1;
  return sharding;
}

/// One dimension, `name=value`.
std::optional<Error> ReadDimension(std::string_view text, Mesh& mesh, std::int64_t& replicas) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = text.substr(std::min(equals + 1, text.size()));
  if (name == "tensor") {
    return mesh.tensor ? Twice(name) : Take(ParseTensorParallel(value), mesh.tensor);
  }
  if (name == "context") {
    return mesh.context ? Twice(name) : Take(ParseContextParallel(value), mesh.context);
  }
  if (name == "fsdp") {
    return mesh.fsdp ? Twice(name) : Take(ParseShardingOfMesh(value), mesh.fsdp);
  }
  if (name == "ddp") return mesh.ddp ? Twice(name) : Take(ParseDataParallel(value), mesh.ddp);
  if (name == "pipeline") {
    return mesh.pipeline ? Twice(name) : Take(ParsePipeline(value), mesh.pipeline);
  }
  if (name == "replicate") {
    const std::optional<std::int64_t> ranks = ParseRanks(value);
    if (replicas > 1) return Twice(name);
    if (ranks) replicas = *ranks;
    if (ranks) return std::nullopt;
    return Error{.message = fmt::format("'{}' is no number of copies", value),
                 .hint = "2 or more: replicate=2"};
  }
  if (name == "expert") {
    return mesh.expert ? Twice(name) : Take(ParseExpertParallel(value), mesh.expert);
  }
  const std::vector<std::string_view> names = {"ddp",     "fsdp",   "replicate", "expert",
                                               "context", "tensor", "pipeline"};
  return Error{.message = fmt::format("'{}' is no dimension of a mesh", name),
               .hint = SuggestOr(name, names, std::string(kMeshHint))};
}

}  // namespace

std::int64_t Mesh::DataRanks() const {
  if (fsdp) return fsdp->ranks * fsdp->replicas;
  if (ddp) return ddp->ranks;
  return expert ? expert->ranks : 1;
}

std::int64_t Mesh::Ranks() const {
  return DataRanks() * (tensor ? tensor->ranks : 1) * (context ? context->ranks : 1) *
         (pipeline ? pipeline->stages : 1);
}

int Mesh::Dimensions() const {
  return int{tensor.has_value()} + int{context.has_value()} + int{fsdp.has_value()} +
         int{ddp.has_value()} + int{expert.has_value()} + int{pipeline.has_value()} +
         int{fsdp && fsdp->replicas > 1};
}

Result<Mesh> ParseMesh(std::string_view text) {
  Mesh mesh;
  std::int64_t replicas = 1;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    if (std::optional<Error> error = ReadDimension(one, mesh, replicas)) return *error;
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
  }
  if (replicas == 1 && (mesh.Dimensions() == 0 || text.ends_with(','))) {
    return Error{.message = fmt::format("'{}' is no mesh", text), .hint = std::string(kMeshHint)};
  }
  if (mesh.fsdp && mesh.ddp) {
    return Error{.message = "a mesh has FSDP or DDP, not both",
                 .hint = "shards that several groups have are fsdp=N,replicate=M"};
  }
  if (replicas > 1 && !mesh.fsdp) {
    return Error{.message = "replicate= is for copies of FSDP's shards",
                 .hint = "give fsdp=N beside it, or ddp=N alone"};
  }
  if (mesh.fsdp && mesh.fsdp->ranks == 1 && !mesh.context) {
    return Error{.message = "FSDP over one rank shards nothing",
                 .hint = "2 or more, or context=N beside it, over which it shards, too"};
  }
  if (mesh.fsdp) mesh.fsdp->replicas = replicas;
  if (mesh.expert && mesh.DataRanks() % mesh.expert->ranks != 0) {
    return Error{.message = fmt::format("{} ranks that share a batch cannot be divided into "
                                        "groups of {} for the experts",
                                        mesh.DataRanks(), mesh.expert->ranks),
                 .hint = "take an expert= that divides the ranks of fsdp="};
  }
  if (mesh.Ranks() > kMostRanks) {
    return Error{.message = fmt::format("'{}' has more ranks than any job", text), .hint = ""};
  }
  return mesh;
}

std::string MeshText(const Mesh& mesh) {
  std::vector<std::string> dimensions;
  if (mesh.ddp) dimensions.push_back("ddp=" + DataParallelText(*mesh.ddp));
  if (mesh.fsdp) dimensions.push_back("fsdp=" + ShardingText(*mesh.fsdp));
  if (mesh.fsdp && mesh.fsdp->replicas > 1) {
    dimensions.push_back(fmt::format("replicate={}", mesh.fsdp->replicas));
  }
  if (mesh.expert) {
    dimensions.push_back(
        fmt::format("expert={}{}", mesh.expert->ranks, mesh.expert->meta ? ":meta" : ""));
  }
  if (mesh.context) {
    dimensions.push_back(
        fmt::format("context={}{}", mesh.context->ranks, mesh.context->ring ? ":ring" : ""));
  }
  if (mesh.tensor) dimensions.push_back("tensor=" + TensorParallelText(*mesh.tensor));
  if (mesh.pipeline) dimensions.push_back("pipeline=" + PipelineText(*mesh.pipeline));
  return Joined(dimensions, ",");
}

std::string DescribeMesh(const Mesh& mesh) {
  std::vector<std::string> words;
  if (mesh.ddp) words.push_back(fmt::format("DDP on {}", mesh.ddp->ranks));
  if (mesh.fsdp) {
    words.push_back(fmt::format(
        "FSDP2{} on {}{}", mesh.fsdp->policy ? " computing in 16 bit" : "", mesh.fsdp->ranks,
        mesh.fsdp->replicas > 1 ? fmt::format(", {} copies of the shards", mesh.fsdp->replicas)
                                : ""));
  }
  if (mesh.expert) words.push_back(fmt::format("expert parallel on {}", mesh.expert->ranks));
  if (mesh.context) words.push_back(fmt::format("context parallel on {}", mesh.context->ranks));
  if (mesh.tensor) {
    words.push_back(fmt::format("tensor parallel on {}{}", mesh.tensor->ranks,
                                mesh.tensor->sequence ? " with sequence parallel" : ""));
  }
  if (mesh.pipeline) {
    words.push_back(fmt::format("pipeline of {} stages, {} micro-batches", mesh.pipeline->stages,
                                mesh.pipeline->micro_batches));
  }
  return Joined(words, ", ");
}

std::optional<Error> CannotMesh(const Job& job, const Variant& variant, const Mesh& mesh) {
  if (mesh.fsdp) {
    if (std::optional<Error> error = CannotShard(job, variant, *mesh.fsdp)) return error;
  }
  if (mesh.expert && (mesh.ddp || mesh.tensor || mesh.context || mesh.pipeline)) {
    return Error{.message =
                     "experts on ranks of their own beside another dimension than FSDP "
                     "are not modelled",
                 .file = job.file,
                 .hint = "give expert= alone or with fsdp="};
  }
  if (mesh.context && mesh.ddp) {
    return Error{.message = "context parallelism with DDP is not modelled",
                 .file = job.file,
                 .hint = "leave ddp= out: weights are sharded over the ranks of the context"};
  }
  if (mesh.ddp && mesh.tensor) {
    return Error{.message = "DDP around divided tensors is not modelled",
                 .file = job.file,
                 .hint = "take fsdp=N in its place"};
  }
  if (mesh.ddp && mesh.pipeline) {
    return Error{.message = "DDP around the stages of a pipeline is not modelled",
                 .file = job.file,
                 .hint = "take fsdp=N in its place"};
  }
  return std::nullopt;
}

namespace {

void SayOnce(Job& job, std::string text) {
  if (!text.empty() && std::ranges::find(job.notes, text) == job.notes.end()) {
    job.notes.push_back(std::move(text));
  }
}

}  // namespace

Result<Variant> AddMesh(Job& job, const Variant& variant, const Mesh& mesh) {
  if (std::optional<Error> error = CannotMesh(job, variant, mesh)) return *error;
  Variant rank = variant;
  std::int64_t apart = 1;
  std::set<Storage> of_experts;
  if (mesh.expert) {
    ExpertParallel expert = *mesh.expert;
    if (mesh.fsdp && mesh.fsdp->meta) expert.meta = true;
    SayOnce(job, DescribeExpertParallel(job, rank, expert));
    Result<ExpertVariant> divided = AddExpertParallel(job, rank, expert);
    if (!divided) return divided.error();
    rank = std::move(divided->variant);
    of_experts = std::move(divided->of_experts);
    if (!expert.meta) rank = BuildWhole(job, rank, variant, expert.ranks);
  }
  std::optional<TensorParallel> tensor = mesh.tensor;
  if (tensor && mesh.fsdp && mesh.fsdp->meta) tensor->meta = true;
  if (tensor) {
    SayOnce(job, DescribeTensorParallel(job, rank, *tensor));
    Result<Variant> divided = AddTensorParallel(job, rank, *tensor, mesh.fsdp || mesh.context);
    if (!divided) return divided.error();
    rank = std::move(*divided);
    apart = mesh.tensor->ranks;
  }
  if (mesh.context) {
    const std::int64_t positions = PositionsOf(job, variant);
    SayOnce(job,
            "context parallelism: each rank has its positions of every sequence, as "
            "context_parallel divides inputs and labels; FSDP shards over the ranks of a "
            "context, too");
    Result<Variant> divided = AddContextParallel(job, rank, *mesh.context, positions, apart);
    if (!divided) return divided.error();
    rank = std::move(*divided);
  }
  const std::int64_t sharded = apart;
  if (mesh.context) apart *= mesh.context->ranks;
  if (mesh.pipeline) {
    Pipeline pipeline = *mesh.pipeline;
    pipeline.apart = apart * mesh.DataRanks();
    const Result<int> shown = ShownStage(job, rank, pipeline);
    if (!shown) return shown.error();
    SayOnce(job, DescribePipeline(job, rank, pipeline, *shown));
    // What stages send each other is on GPUs, where gloo cannot take it from.
    job.backend = Backend::kNccl;
    pipeline.stage = *shown;
    Result<Variant> stage = AddPipeline(job, rank, pipeline);
    if (!stage) return stage.error();
    rank = std::move(*stage);
  }
  if (tensor && !tensor->meta) rank = BuildWhole(job, rank, variant, tensor->ranks);
  if (mesh.fsdp || mesh.context) {
    Sharding sharding = mesh.fsdp.value_or(Sharding{.ranks = 1});
    if (mesh.context) sharding.ranks *= mesh.context->ranks;
    sharding.apart = sharded;
    sharding.left_out = std::move(of_experts);
    sharding.in_pipeline = mesh.pipeline.has_value();
    SayOnce(job, DescribeSharding(job, rank, sharding));
    rank = AddFullySharded(job, rank, sharding);
  }
  if (mesh.ddp) {
    SayOnce(job, DescribeDataParallel(*mesh.ddp));
    rank = AddDataParallel(job, rank, *mesh.ddp);
  }
  return rank;
}

}  // namespace plimsoll
