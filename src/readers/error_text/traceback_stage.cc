#include "readers/error_text/traceback_stage.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

constexpr auto kNotThere = std::string_view::npos;

bool Mentions(std::string_view text, std::string_view part) { return text.find(part) != kNotThere; }

/// A frame whose file has `file` in its path and whose function is `function`; empty: any. A star
/// stands for what may be in front of the name or behind it.
struct FrameRule {
  Stage stage;
  std::string_view file;
  std::string_view function;
};

// The first rule that a frame fits decides for that frame.
constexpr auto kFrameRules = std::to_array<FrameRule>({
    {Stage::kSave, "", "save_pretrained"},
    {Stage::kSave, "", "save_model"},
    {Stage::kSave, "", "*save_checkpoint"},
    {Stage::kSave, "", "state_dict"},
    {Stage::kSave, "", "get_model_state_dict"},
    {Stage::kSave, "", "get_state_dict"},
    {Stage::kSave, "", "*optim_state_dict"},
    {Stage::kSave, "", "*post_state_dict_hook"},
    {Stage::kSave, "", "*consolidated_16bit_state_dict"},
    {Stage::kSave, "", "consolidate_state_dict"},
    {Stage::kSave, "unsloth/save.py", ""},
    {Stage::kSave, "serialization.py", "save"},
    {Stage::kSave, "serialization.py", "*_save"},

    {Stage::kLoad, "", "*from_pretrained"},
    {Stage::kLoad, "", "*load_state_dict"},
    {Stage::kLoad, "", "*load_checkpoint"},
    {Stage::kLoad, "", "_load_from_checkpoint"},
    {Stage::kLoad, "", "_load_optimizer_and_scheduler"},
    {Stage::kLoad, "", "_load_pretrained_model"},
    {Stage::kLoad, "", "set_module_tensor_to_device"},
    {Stage::kLoad, "", "load_weights"},
    {Stage::kLoad, "vllm/", "load_model"},
    {Stage::kLoad, "sglang/", "load_model"},
    {Stage::kLoad, "serialization.py", ""},
    {Stage::kLoad, "safetensors/", ""},

    {Stage::kBuild, "nn/modules/module.py", "to"},
    {Stage::kBuild, "nn/modules/module.py", "cuda"},
    {Stage::kBuild, "nn/modules/module.py", "_apply"},
    {Stage::kBuild, "nn/modules/module.py", "to_empty"},
    {Stage::kBuild, "nn/modules/module.py", "half"},
    {Stage::kBuild, "nn/modules/module.py", "float"},
    {Stage::kBuild, "nn/modules/module.py", "bfloat16"},
    {Stage::kBuild, "nn/modules/", "__init__"},
    {Stage::kBuild, "nn/init.py", ""},
    {Stage::kBuild, "", "reset_parameters"},
    {Stage::kBuild, "", "model_to_device"},
    {Stage::kBuild, "", "_move_model_to_device"},
    {Stage::kBuild, "", "prepare_model"},
    {Stage::kBuild, "", "_prepare_deepspeed"},
    {Stage::kBuild, "", "_prepare_fsdp"},
    {Stage::kBuild, "", "_configure_distributed_model"},
    {Stage::kBuild, "", "_configure_zero_optimizer"},
    {Stage::kBuild, "", "initialize_optimizer_states"},
    {Stage::kBuild, "nn/parallel/distributed.py", "__init__"},
    {Stage::kBuild, "nn/parallel/distributed.py", "_ddp_init_helper"},
    {Stage::kBuild, "fully_sharded_data_parallel.py", "__init__"},
    {Stage::kBuild, "fsdp/_init_utils.py", ""},
    {Stage::kBuild, "fsdp/_wrap_utils.py", ""},
    {Stage::kBuild, "fsdp/wrap.py", ""},
    {Stage::kBuild, "fsdp/_fully_shard/_fsdp_init.py", ""},
    {Stage::kBuild, "fsdp/", "__init__"},
    {Stage::kBuild, "", "fully_shard"},
    {Stage::kBuild, "deepspeed/__init__.py", "initialize"},
    {Stage::kBuild, "deepspeed/runtime/", "__init__"},
    {Stage::kBuild, "partition_parameters.py", "_post_init_method"},
    {Stage::kBuild, "partition_parameters.py", "_zero_init_param"},
    {Stage::kBuild, "/copy.py", ""},
    {Stage::kBuild, "", "__deepcopy__"},

    {Stage::kOptimizer, "/optim/", ""},
    {Stage::kOptimizer, "/optimizers/", ""},
    {Stage::kOptimizer, "deepspeed/ops/", ""},
    {Stage::kOptimizer, "clip_grad.py", ""},
    {Stage::kOptimizer, "", "clip_grad_norm_"},
    {Stage::kOptimizer, "grad_scaler.py", ""},
    {Stage::kOptimizer, "deepspeed/runtime/zero/", "step"},
    {Stage::kOptimizer, "deepspeed/runtime/engine.py", "step"},
    {Stage::kOptimizer, "", "_take_model_step"},
    {Stage::kOptimizer, "", "optimizer_step"},
    {Stage::kOptimizer, "optimizer.py", "step"},

    {Stage::kAllGather, "fsdp/_flat_param.py", ""},
    {Stage::kAllGather, "fsdp/flat_param.py", ""},
    {Stage::kAllGather, "fsdp/", "*unshard"},
    {Stage::kAllGather, "fsdp/", "all_gather*"},
    {Stage::kAllGather, "fsdp/", "*all_gather_outputs"},
    {Stage::kAllGather, "fsdp/_fully_shard/_fsdp_collectives.py", ""},
    {Stage::kAllGather, "", "summon_full_params"},
    {Stage::kAllGather, "partition_parameters.py", "*all_gather*"},
    {Stage::kAllGather, "partitioned_param_coordinator.py", ""},
    {Stage::kAllGather, "parameter_offload.py", ""},

    {Stage::kEvaluation, "", "evaluation_loop"},
    {Stage::kEvaluation, "", "prediction_loop"},
    {Stage::kEvaluation, "", "prediction_step"},
    {Stage::kEvaluation, "", "nested_concat"},
    {Stage::kEvaluation, "", "validation_step"},
    {Stage::kEvaluation, "", "test_step"},
    {Stage::kEvaluation, "", "_run_sanity_check"},
    {Stage::kEvaluation, "evaluation_loop.py", ""},
    {Stage::kEvaluation, "trainer", "evaluate"},
    {Stage::kEvaluation, "trainer", "predict"},
    {Stage::kEvaluation, "recipes/", "validate"},
    {Stage::kEvaluation, "torchtitan/", "validate"},
    {Stage::kEvaluation, "megatron/training/", "evaluate"},
    {Stage::kEvaluation, "verl/trainer/", "_validate"},

    {Stage::kGeneration, "/generation/", ""},
    {Stage::kGeneration, "", "generate"},
    {Stage::kGeneration, "/cache_utils.py", ""},

    {Stage::kBackward, "autograd/__init__.py", ""},
    {Stage::kBackward, "autograd/graph.py", ""},
    {Stage::kBackward, "", "backward"},

    {Stage::kLoss, "nn/modules/loss.py", ""},
    {Stage::kLoss, "loss/loss_utils.py", ""},
    {Stage::kLoss, "", "*cross_entropy*"},
    {Stage::kLoss, "", "*log_softmax*"},
    {Stage::kLoss, "", "nll_loss"},
    {Stage::kLoss, "", "*CausalLMLoss"},

    {Stage::kTransfer, "", "send_to_device"},
    {Stage::kTransfer, "", "move_data_to_device"},
    {Stage::kTransfer, "", "batch_to_device"},
    {Stage::kTransfer, "", "*transfer_batch_to_device"},
    {Stage::kTransfer, "", "_prepare_input"},
    {Stage::kTransfer, "", "_prepare_inputs"},
    {Stage::kTransfer, "tokenization_utils_base.py", "to"},
    {Stage::kTransfer, "feature_extraction_utils.py", "to"},

    {Stage::kForward, "", "forward"},
    {Stage::kForward, "nn/modules/module.py", "_call_impl"},
});

/// What a line of source calls, wherever it stands in the traceback: the call is being made.
struct SourceRule {
  Stage stage;
  std::string_view words;
};
constexpr auto kSourceRules = std::to_array<SourceRule>({
    {Stage::kSave, "torch.save("},
    {Stage::kSave, ".save_pretrained("},
    {Stage::kLoad, "torch.load("},
    {Stage::kLoad, ".load_state_dict("},
    {Stage::kLoad, ".from_pretrained("},
    {Stage::kBuild, "deepspeed.initialize("},
    {Stage::kBuild, "copy.deepcopy("},
    {Stage::kBuild, "model.to("},
    {Stage::kBuild, "model.cuda("},
    {Stage::kBuild, "net.to("},
    {Stage::kBuild, "net.cuda("},
    {Stage::kBuild, "pipe.to("},
    {Stage::kOptimizer, "optimizer.step("},
    {Stage::kOptimizer, "scaler.step("},
    {Stage::kOptimizer, "clip_grad_norm_("},
    {Stage::kGeneration, ".generate("},
    {Stage::kBackward, ".backward("},
    {Stage::kLoss, "lm_head("},
});
/// Calls whose arguments may be calls of their own: only of the innermost frame.
constexpr auto kInnermostRules = std::to_array<SourceRule>({
    {Stage::kLoss, "cross_entropy("},
    {Stage::kLoss, "log_softmax("},
    {Stage::kLoss, "logits.float("},
    {Stage::kLoss, "nll_loss("},
    {Stage::kTransfer, ".to("},
    {Stage::kTransfer, ".cuda("},
});

/// Of the stages that frames show, the one that tells most: an evaluation calls a forward, which
/// ends in a loss.
constexpr auto kMostTelling =
    std::to_array({Stage::kSave, Stage::kLoad, Stage::kGeneration, Stage::kEvaluation,
                   Stage::kBuild, Stage::kOptimizer, Stage::kAllGather, Stage::kBackward,
                   Stage::kLoss, Stage::kTransfer, Stage::kForward});

bool FitsName(std::string_view name, std::string_view pattern) {
  const bool front = pattern.starts_with('*');
  const bool back = pattern.ends_with('*');
  if (front) pattern.remove_prefix(1);
  if (back) pattern.remove_suffix(1);
  if (front && back) return Mentions(name, pattern);
  if (front) return name.ends_with(pattern);
  return back ? name.starts_with(pattern) : name == pattern;
}

/// "Module.to" and "Net.forward" of IPython: the last part.
std::string_view BareName(std::string_view function) {
  const std::size_t dot = function.rfind('.');
  return dot == kNotThere ? function : function.substr(dot + 1);
}

std::string WithSlashes(std::string_view file) {
  std::string path(file);
  std::replace(path.begin(), path.end(), '\\', '/');
  return path;
}

Stage StageOfFrame(const std::string& path, std::string_view function) {
  for (const FrameRule& rule : kFrameRules) {
    if (!rule.file.empty() && !Mentions(path, rule.file)) continue;
    if (rule.function.empty() || FitsName(function, rule.function)) return rule.stage;
  }
  return Stage::kUnknown;
}

template <std::size_t n>
Stage StageOfSource(std::string_view source, const std::array<SourceRule, n>& rules) {
  for (const SourceRule& rule : rules) {
    if (Mentions(source, rule.words)) return rule.stage;
  }
  return Stage::kUnknown;
}

/// People's own functions: `evaluate`, `validate_epoch`, `run_eval`; but `train_and_evaluate`
/// trains as well.
bool IsNamedForEvaluation(std::string_view function) {
  if (Mentions(function, "train") || Mentions(function, "fit")) return false;
  for (std::string_view begin : {"eval", "valid", "test", "infer", "predict"}) {
    if (function.starts_with(begin)) return true;
  }
  return Mentions(function, "_eval") || Mentions(function, "_valid") || Mentions(function, "_test");
}

/// A loop over validation data that is no function: its lines stand in the notebook's cell.
bool IsLoopOfEvaluation(std::string_view source, std::string_view context) {
  for (std::string_view trains : {".backward(", "optimizer.step(", "opt.step(", ".train()"}) {
    if (Mentions(source, trains) || Mentions(context, trains)) return false;
  }
  for (std::string_view words :
       {".eval()", "in val_", "in valid", "in test_", "in eval_", "in dev_"}) {
    if (Mentions(context, words)) return true;
  }
  return source.starts_with("val_") || Mentions(source, " val_loss") ||
         Mentions(source, "valid_loss =") || Mentions(source, "test_loss =");
}

struct FoundStages {
  std::array<bool, 16> of_libraries{};
  bool named_for_evaluation = false;
  bool named_for_loading = false;

  void Add(Stage stage) { of_libraries[static_cast<std::size_t>(stage)] = true; }
  bool Shows(Stage stage) const { return of_libraries[static_cast<std::size_t>(stage)]; }

  Stage Decide() const {
    // Whatever a function is called, a backward or an optimizer's step is training.
    const bool trains = Shows(Stage::kBackward) || Shows(Stage::kOptimizer) || Shows(Stage::kBuild);
    for (Stage stage : kMostTelling) {
      if (stage == Stage::kEvaluation && named_for_evaluation && !trains) return stage;
      if (Shows(stage)) return stage;
      if (stage == Stage::kTransfer && named_for_loading) return Stage::kLoad;
    }
    return named_for_loading ? Stage::kLoad : Stage::kUnknown;
  }
};

/// The scores of attention, which grow with the square of the length.
bool IsOfAttentionScores(std::string_view source) {
  for (std::string_view words :
       {"attn_weights", "attention_scores", "attn_scores", "q @ k", "torch.matmul(q",
        "torch.matmul(query", "softmax(att", "softmax(scores", "baddbmm("}) {
    if (Mentions(source, words)) return true;
  }
  return false;
}

/// The stage of ZeRO whose file this is; stages 1 and 2 share one.
std::optional<int> ZeroStageOf(std::string_view path) {
  if (!Mentions(path, "deepspeed/runtime/")) return {};
  if (Mentions(path, "zero/stage_1_and_2.py") || Mentions(path, "zero/stage2.py")) return 2;
  for (std::string_view file :
       {"zero/stage3.py", "zero/partition_parameters.py", "zero/partitioned_param_coordinator.py",
        "zero/parameter_offload.py"}) {
    if (Mentions(path, file)) return 3;
  }
  return {};
}

struct ActivityRule {
  Activity activity;
  std::string_view file;
  std::string_view function;
};
// What tells most first: a sampler's warm-up is a part of the profile run.
constexpr auto kActivityRules = std::to_array<ActivityRule>({
    {Activity::kWakeUp, "/vllm/", "wake_up"},
    {Activity::kWakeUp, "/verl/", "wake_up"},
    {Activity::kWakeUp, "cumem.py", "create_and_map"},
    {Activity::kSamplerWarmUp, "/vllm/", "_dummy_sampler_run"},
    {Activity::kGraphCapture, "/vllm/", "capture_model"},
    {Activity::kGraphCapture, "/vllm/", "*capture_cudagraphs"},
    {Activity::kProfileRun, "/vllm/", "profile_run"},
    {Activity::kProfileRun, "/vllm/", "determine_available_memory"},
    {Activity::kProfileRun, "/vllm/", "determine_num_available_blocks"},
    {Activity::kCacheMade, "/vllm/", "initialize_kv_cache*"},
    {Activity::kCacheMade, "/vllm/", "_allocate_kv_cache*"},
    {Activity::kCacheMade, "/vllm/", "initialize_cache"},
    {Activity::kAdapterMerged, "/peft/", "merge*"},
    {Activity::kAdapterMerged, "/peft/", "*optionally_merge"},
    {Activity::kAdapterMerged, "/peft/", "get_delta_weight"},
    {Activity::kVaeDecode, "/autoencoder", "*decode"},
    {Activity::kVaeDecode, "/diffusers/", "decode_latents"},
    {Activity::kVaeEncode, "/autoencoder", "*encode"},
    {Activity::kPromptEncoded, "", "encode_prompt"},
    {Activity::kPromptEncoded, "", "*_prompt_embeds"},
    {Activity::kPromptEncoded, "", "compute_text_embeddings"},
    {Activity::kLogProbs, "/verl/", "*log_prob"},
    {Activity::kLogProbs, "/trl/", "_get_per_token_logps*"},
    {Activity::kLogProbs, "", "selective_log_softmax"},
    {Activity::kLogProbs, "", "logprobs_from_logits*"},
});

Activity ActivityOfFrame(const std::string& path, std::string_view function) {
  for (const ActivityRule& rule : kActivityRules) {
    if (!rule.file.empty() && !Mentions(path, rule.file)) continue;
    if (FitsName(function, rule.function)) return rule.activity;
  }
  return Activity::kNone;
}

std::uint32_t ActivityBit(Activity activity) {
  return std::uint32_t{1} << static_cast<unsigned>(activity);
}

Activity MostTelling(std::uint32_t activities) {
  for (const ActivityRule& rule : kActivityRules) {
    if ((activities & ActivityBit(rule.activity)) != 0) return rule.activity;
  }
  return Activity::kNone;
}

bool JoinsPredictions(std::string_view function, std::string_view source) {
  // There a model joins its own features.
  if (function == "forward") return false;
  for (std::string_view name : {"nested_concat", "torch_pad_and_concatenate",
                                "pad_across_processes", "nested_truncate", "gather_for_metrics"}) {
    if (function == name) return true;
  }
  return Mentions(source, "torch.cat(") || Mentions(source, "torch.stack(") ||
         Mentions(source, "nested_concat(");
}

}  // namespace

bool IsUserCode(std::string_view file) {
  for (std::string_view foreign :
       {"site-packages", "dist-packages", "lib/python", "/torch/", "\\torch\\", "lib\\python"}) {
    if (Mentions(file, foreign)) return false;
  }
  return !file.starts_with("<") || file.starts_with("<ipython-input-");
}

void ReadStage(const std::vector<TracedFrame>& frames, OomMessage& message) {
  constexpr std::size_t kInnermost = 3;
  FoundStages found;
  std::uint32_t activities = 0;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::string path = WithSlashes(frames[i].frame.file);
    const std::string_view function = BareName(frames[i].frame.function);
    const std::string_view source = frames[i].source;
    const bool user = IsUserCode(frames[i].frame.file);
    found.Add(StageOfFrame(path, function));
    found.Add(StageOfSource(source, kSourceRules));
    if (i == 0) found.Add(StageOfSource(source, kInnermostRules));
    found.named_for_evaluation |= user && IsNamedForEvaluation(function);
    found.named_for_evaluation |= user && IsLoopOfEvaluation(source, frames[i].context);
    found.named_for_loading |= user && Mentions(function, "load_model");
    message.signs.frameworks |= FrameworksOfFile(path);
    activities |= ActivityBit(ActivityOfFrame(path, function));
    message.signs.transformers |= Mentions(path, "/transformers/");
    if (!message.zero_stage) message.zero_stage = ZeroStageOf(path);
    message.signs.deep_copy |= Mentions(path, "/copy.py") || Mentions(source, "copy.deepcopy(");
    if (i < kInnermost) {
      message.signs.attention_scores |= IsOfAttentionScores(source);
      message.signs.joins_predictions |= JoinsPredictions(function, source);
    }
  }
  const Stage stage = found.Decide();
  if (stage != Stage::kUnknown) message.stage = stage;
  message.activity = MostTelling(activities);
  message.signs.joins_predictions &= message.stage == Stage::kEvaluation;
}

}  // namespace plimsoll
