// Several GPUs: DistributedDataParallel and ZeRO, FSDP2, or a pipeline of stages.
#include <fmt/format.h>

#include <variant>

#include "job/parallel/data_parallel.h"
#include "job/parallel/fully_sharded.h"
#include "job/parallel/pipeline.h"
#include "job/parallel/sharding.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

constexpr std::string_view kForms =
    "ddp, ddp:4, ddp:4:views, zero1:4, zero2:4, fsdp:4, fsdp:4:keep, fsdp:4:bf16, pipeline:4:16";

using Parallel = std::variant<DataParallel, Sharding, Pipeline>;

template <typename T>
Result<Parallel> AsWay(const Result<T>& parsed) {
  if (!parsed) return parsed.error();
  return Parallel(*parsed);
}

Result<Parallel> ParseWay(std::string_view value) {
  if (value == "ddp") return Parallel(DataParallel{});
  if (value.starts_with("ddp:")) return AsWay(ParseDataParallel(value.substr(4)));
  if (value.starts_with("zero")) return AsWay(ParseDataParallel(value));
  if (value.starts_with("fsdp:")) return AsWay(ParseSharding(value.substr(5)));
  if (value.starts_with("pipeline:")) return AsWay(ParsePipeline(value.substr(9)));
  return Error{.message = fmt::format("'{}' is no way to train on several GPUs", value),
               .hint = std::string(kForms)};
}

Parallel WayOf(const Choice& choice) {
  const Result<Parallel> way = ParseWay(choice.Get(kParallelLever.name));
  return way ? *way : Parallel(DataParallel{});
}

Numerics NumericsOfWay(const Job&, std::string_view value) {
  const Result<Parallel> way = ParseWay(value);
  const auto* sharding = way ? std::get_if<Sharding>(&*way) : nullptr;
  return sharding != nullptr && sharding->policy ? Numerics::kRounding : Numerics::kSame;
}

std::vector<std::string> WaysWorthTrying(const PlanRequest& request, const Variant&) {
  if (request.gpus == 1) return {};
  const std::int64_t n = request.gpus;
  std::vector<std::string> values = {fmt::format("ddp:{}", n), fmt::format("zero1:{}", n),
                                     fmt::format("fsdp:{}", n), fmt::format("fsdp:{}:keep", n)};
  const Choice policy = Choice{}.With(kParallelLever.name, fmt::format("fsdp:{}:bf16", n));
  const Result<std::size_t> variant = VariantFor(request.job, policy);
  const std::string value(policy.Get(kParallelLever.name));
  if (variant && kParallelLever.suits(request.job, request.job.variants[*variant], value)) {
    values.push_back(value);
  }
  return values;
}

std::string DescribeWay(const Job&, const Choice& choice) {
  const Parallel way = WayOf(choice);
  if (const auto* pipeline = std::get_if<Pipeline>(&way)) {
    return fmt::format("pipeline of {} stages, {} micro-batches", pipeline->stages,
                       pipeline->micro_batches);
  }
  if (const auto* sharding = std::get_if<Sharding>(&way)) {
    return fmt::format("FSDP2{} on {} GPUs", sharding->policy ? " computing in 16 bit" : "",
                       sharding->ranks);
  }
  const auto& ddp = std::get<DataParallel>(way);
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

LeverFields ParallelFields(const Job&, const Choice& choice) {
  return std::visit([](const auto& way) { return FieldsOf(way); }, WayOf(choice));
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

std::vector<std::string> CodeOfWay(const Job&, const Choice& choice) {
  const Parallel way = WayOf(choice);
  std::vector<std::string> lines;
  std::int64_t ranks = 1;
  if (const auto* sharding = std::get_if<Sharding>(&way)) {
    lines = ShardingCode(*sharding);
    ranks = sharding->ranks;
  } else if (const auto* ddp = std::get_if<DataParallel>(&way)) {
    lines = {fmt::format("model = torch.nn.parallel.DistributedDataParallel(model{})",
                         ddp->views ? ", gradient_as_bucket_view=True" : "")};
    if (ddp->zero == DataParallel::Zero::kState) {
      lines.emplace_back(
          "optimizer = torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), ...)");
    } else if (ddp->zero == DataParallel::Zero::kGradients) {
      lines = {"# DeepSpeed: \"zero_optimization\": {\"stage\": 2}"};
    }
    ranks = ddp->ranks;
  } else {
    const auto& pipeline = std::get<Pipeline>(way);
    lines = {fmt::format("schedule = torch.distributed.pipelining.{}(stage, n_microbatches={})",
                         pipeline.chunks > 1 ? "ScheduleInterleaved1F1B" : "Schedule1F1B",
                         pipeline.micro_batches)};
    ranks = pipeline.stages;
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

std::string DescribeGloo(const Parallel& way) {
  const auto* ddp = std::get_if<DataParallel>(&way);
  const bool zero = ddp != nullptr && ddp->zero != DataParallel::Zero::kNothing;
  return fmt::format(
      "the ranks exchange tensors by gloo: what it copies on the GPU is {}counted, and nothing for "
      "NCCL; the time is as with NCCL",
      zero ? "not " : "");
}

std::optional<Error> RewriteJob(Job& job, Variant& variant, std::string_view value) {
  const Result<Parallel> way = ParseWay(value);
  if (!way) return way.error();
  if (const auto* sharding = std::get_if<Sharding>(&*way)) {
    if (std::optional<Error> error = CannotShard(job, variant, *sharding)) return error;
    Note(job, DescribeSharding(job, variant, *sharding));
    variant = AddFullySharded(job, variant, *sharding);
  } else if (const auto* pipeline = std::get_if<Pipeline>(&*way)) {
    Note(job, DescribePipeline(job, variant, *pipeline));
    // What stages send each other is on GPUs, where gloo cannot take it from.
    job.backend = Backend::kNccl;
    Result<Variant> stage = AddPipeline(job, variant, *pipeline);
    if (!stage) return stage.error();
    variant = std::move(*stage);
  } else {
    const DataParallel ddp = value == "ddp" ? AsScriptHas(job) : std::get<DataParallel>(*way);
    if (std::string text = DescribeDataParallel(ddp); !text.empty()) Note(job, std::move(text));
    variant = AddDataParallel(job, variant, ddp);
  }
  if (job.backend == Backend::kGloo) Note(job, DescribeGloo(*way));
  return std::nullopt;
}

}  // namespace

bool SplitsTheModel(const Choice& choice) {
  return !choice.Get(kParallelLever.name).empty() &&
         !std::holds_alternative<DataParallel>(WayOf(choice));
}

bool ComputesUnderAPolicy(const Choice& choice) {
  const Parallel way = WayOf(choice);
  const auto* sharding = std::get_if<Sharding>(&way);
  return sharding != nullptr && sharding->policy.has_value();
}

const PlanLever kParallelLever = {
    .name = "parallel",
    .values = kForms,
    .numerics = NumericsOfWay,
    .worth_trying = WaysWorthTrying,
    .suits =
        [](const Job& job, const Variant& variant, std::string_view value) {
          const Result<Parallel> way = ParseWay(value);
          const auto* sharding = way ? std::get_if<Sharding>(&*way) : nullptr;
          return sharding == nullptr || !CannotShard(job, variant, *sharding);
        },
    .describe = DescribeWay,
    .fields = ParallelFields,
    .code = CodeOfWay,
    .rewrite = RewriteJob,
};

std::int64_t SamplesOf(const Job& job, const Choice& choice) {
  const std::int64_t samples = choice.batch * PassesOf(choice) * CapturedPasses(job);
  if (choice.Get(kParallelLever.name).empty()) return samples;
  const Parallel way = WayOf(choice);
  if (const auto* sharding = std::get_if<Sharding>(&way)) return samples * sharding->ranks;
  if (const auto* pipeline = std::get_if<Pipeline>(&way)) return samples * pipeline->micro_batches;
  return samples * std::get<DataParallel>(way).ranks;
}

}  // namespace plimsoll
