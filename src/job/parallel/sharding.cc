#include "job/parallel/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/text.h"
#include "job/parallel/collective.h"
#include "job/transforms/shard_groups.h"

namespace plimsoll {
namespace {

/// One of the words after the number. False if it is none, or contradicts another.
bool ReadForm(std::string_view form, Sharding& to) {
  const bool keeps = form == ":keep" || form == ":keep_last";
  if (keeps && to.keep == Sharding::Keep::kNone) {
    to.keep = form == ":keep" ? Sharding::Keep::kAll : Sharding::Keep::kLast;
    return true;
  }
  if (form == ":meta") return to.meta = true;
  if (const auto backend = ParseBackend(form); backend && !to.backend) {
    to.backend = backend;
    return true;
  }
  if ((form == ":bf16" || form == ":fp16") && !to.policy) {
    to.policy = {.param = form == ":bf16" ? DType::kBFloat16 : DType::kFloat16};
    return true;
  }
  if (form != ":reduce_half" || !to.policy) return false;
  to.policy->reduce = to.policy->param;
  return true;
}

std::string_view NameOf(DType dtype) {
  return dtype == DType::kBFloat16 ? "bf16" : dtype == DType::kFloat16 ? "fp16" : "fp32";
}

bool ComputesIn(const Job& job, const Variant& variant, DType dtype) {
  return std::ranges::all_of(variant.model_tensors, [&](const ModelTensor& tensor) {
    return !tensor.trainable || job.layouts[tensor.layout].dtype == dtype;
  });
}

std::string DescribeGroups(const Job& job, const Variant& variant) {
  const ShardGroups groups = ShardGroups::AsSharded(job, variant);
  const std::size_t parts = groups.all().size() - 1;
  if (!job.sharded.empty()) {
    if (parts == 0) return "on the model as a whole, as the script has it";
    return fmt::format("on {} parts of the model and on the whole, as the script has it", parts);
  }
  std::vector<std::string> lists = groups.lists();
  for (std::string& list : lists) {
    if (list.empty()) list = "the model";
  }
  if (lists.empty()) return "on the model as a whole, which has no numbered list of modules";
  return fmt::format("on each of the {} members of {}, and on the whole", parts,
                     Joined(lists, " and "));
}

}  // namespace

Result<Sharding> ParseSharding(std::string_view text) {
  Sharding sharding;
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, sharding.ranks);
  std::string_view rest(at, static_cast<std::size_t>(end - at));
  bool good = error == std::errc() && sharding.ranks >= 2 && sharding.ranks <= kMostRanks;
  while (good && !rest.empty()) {
    const std::string_view form = rest.substr(0, rest.find(':', 1));
    good = ReadForm(form, sharding);
    rest.remove_prefix(form.size());
  }
  if (good) return sharding;
  return Error{.message = fmt::format("'{}' does not say how many ranks, and how", text),
               .hint =
                   "2 or more, then :keep or :keep_last, :meta, :bf16 or :fp16 and :reduce_half, "
                   ":gloo or :nccl where they apply (docs/predict.md)"};
}

std::string ShardingText(const Sharding& sharding) {
  std::string text = std::to_string(sharding.ranks);
  if (sharding.keep == Sharding::Keep::kAll) text += ":keep";
  if (sharding.keep == Sharding::Keep::kLast) text += ":keep_last";
  if (sharding.meta) text += ":meta";
  if (sharding.policy) {
    text += fmt::format(":{}", NameOf(sharding.policy->param));
    if (sharding.policy->reduce == sharding.policy->param) text += ":reduce_half";
  }
  return text + std::string(BackendText(sharding.backend));
}

std::optional<Error> CannotShard(const Job& job, const Variant& variant, const Sharding& sharding) {
  if (!sharding.policy || ComputesIn(job, variant, sharding.policy->param)) return std::nullopt;
  const DType dtype = sharding.policy->param;
  return Error{
      .message = fmt::format("FSDP that computes in {0} needs a capture in {0}", NameOf(dtype)),
      .file = job.file,
      .hint = dtype == DType::kBFloat16
                  ? "capture with precisions=[\"bf16\"]"
                  : "capture the model with its weights in fp16: model.half()"};
}

std::string DescribeSharding(const Job& job, const Variant& variant, const Sharding& sharding) {
  std::string text =
      fmt::format("FSDP: fully_shard {}; {}", DescribeGroups(job, variant),
                  sharding.meta ? "built on the meta device"
                                : "the model is on the GPU before it is sharded (if not: :meta)");
  if (sharding.policy) {
    text += fmt::format(
        "; computed in {}, gradients reduced in {}, shards and the optimizer's state in fp32",
        NameOf(sharding.policy->param), NameOf(sharding.policy->reduce));
  }
  return text;
}

}  // namespace plimsoll
