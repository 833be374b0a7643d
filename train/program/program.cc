// plimsoll-train: one of four models, trained within a memory budget.
#include "train/program/program.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "train/data/image_folder.h"
#include "train/data/loader.h"
#include "train/data/synthetic.h"
#include "train/data/text_file.h"
#include "train/light/lora.h"
#include "train/models/cross_entropy.h"
#include "train/models/gpt.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/optimizer_forms.h"
#include "train/parallel/ranks/local_launcher.h"
#include "train/program/check_files.h"
#include "train/program/check_flags.h"
#include "train/program/flags.h"
#include "train/program/split_model.h"
#include "train/saving/weights.h"
#include "train/state/json_limits.h"
#include "train/trainer/run_log.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<Source> MadeOnTheSpot(const Flags& flags) {
  const SyntheticImageOptions images{.seed = flags.seed,
                                     .channels = flags.sizes.in_channels,
                                     .height = flags.image,
                                     .width = flags.image,
                                     .classes = flags.sizes.classes};
  if (flags.model == "unet") return SyntheticMasks(images);
  if (flags.model == "classifier") return SyntheticImages(images);
  if (flags.model == "mlp") {
    return SyntheticVectors(
        {.seed = flags.seed, .inputs = flags.sizes.in_channels, .classes = flags.sizes.classes});
  }
  return SyntheticText(
      {.seed = flags.seed, .context = flags.sizes.context, .vocabulary = flags.sizes.vocabulary});
}

std::shared_ptr<Source> OpenImages(const Flags& flags, const ImageOptions& images) {
  auto folder = std::make_shared<ImageFolder>(flags.data, images);
  TORCH_CHECK(std::cmp_less_equal(folder->classes().size(), flags.sizes.classes),
              "--classes: ", flags.data, " has folders of ", folder->classes().size(),
              " classes, and the classifier tells ", flags.sizes.classes, " apart");
  return folder;
}

std::shared_ptr<Source> OpenText(const Flags& flags) {
  auto text = std::make_shared<TextFile>(flags.data, flags.sizes.context);
  TORCH_CHECK(text->LargestToken() < flags.sizes.vocabulary, "--vocabulary: ", flags.data,
              " has the token (byte) ", text->LargestToken(), ", and the gpt knows those below ",
              flags.sizes.vocabulary);
  return text;
}

std::shared_ptr<Source> MakeSource(const Flags& flags) {
  if (flags.data.empty()) return MadeOnTheSpot(flags);
  const ImageOptions images{.height = flags.image,
                            .width = flags.image,
                            .channels = static_cast<int>(flags.sizes.in_channels)};
  if (flags.model == "unet")
    return std::make_shared<SegmentationFolder>(flags.data, flags.sizes.classes, images);
  return flags.model == "classifier" ? OpenImages(flags, images) : OpenText(flags);
}

OptimizerForms MakeOptimizer(const Flags& flags, const std::vector<at::Tensor>& parameters) {
  OptimizerForms adamw = AdamWForms(parameters, torch::optim::AdamWOptions(flags.learning_rate));
  if (flags.optimizer == "adamw8bit") adamw.allowed = {OptimizerForm::kEightBits};
  if (flags.optimizer == "adamw-host") adamw.allowed = {OptimizerForm::kHost};
  if (flags.optimizer != "sgd") return adamw;
  const auto sgd = [=](OptimizerForm) {
    return std::make_shared<FusedSgd>(parameters,
                                      torch::optim::SGDOptions(flags.learning_rate).momentum(0.9));
  };
  return {.make = sgd, .allowed = {OptimizerForm::kFused}};
}

/// The model as it is stays, and adapters beside its layers are trained.
void UseLora(TrainModel& model, std::int64_t rank, bool quiet) {
  const LightReport report =
      AddLora(model, {.adapter = {.rank = rank, .alpha = 2 * static_cast<double>(rank)}});
  if (quiet) return;
  const std::string others =
      report.skipped.empty() ? "" : c10::str(", ", report.skipped.size(), " cannot have any");
  std::fprintf(stderr,
               "%zu layers have adapters of rank %" PRId64 "%s: %" PRId64 " of %" PRId64
               " parameters are trained\n",
               report.changed.size(), rank, others.c_str(), report.after.trained,
               report.after.parameters);
}

/// What was learnt goes into the weights themselves, for those that know of no adapters. Not to be
/// trained any more.
void MergeForGood(torch::nn::Module& model) {
  MergeLora(model);
  for (const auto& module : model.modules()) {
    auto* const layer = dynamic_cast<LightLayer*>(module.get());
    if (layer != nullptr && layer->has_adapter()) layer->RemoveAdapter();
  }
}

LoaderOptions LoadingOf(const Flags& flags, const Source& source, const SplitModel& split) {
  // No model has both.
  const std::int64_t budget = flags.batch_tokens + flags.batch_pixels;
  const std::int64_t batch = budget == 0 ? flags.batch : budget / source.Length(0);
  return {.batch = budget == 0 ? batch : 0,
          .seed = flags.seed,
          .drop_last = batch > 0 && source.size() >= batch,
          .workers = flags.workers,
          .pinned = flags.trainer.device.is_cuda(),
          .budget = budget,
          .rank = split.share,
          .ranks = split.shares,
          .max_broken = flags.skip_broken ? source.size() : 0};
}

void TellBroken(const BrokenSamples& broken) {
  if (broken.count == 0) return;
  std::fprintf(stderr, "%" PRId64 " broken %s left out; the first: %s\n", broken.count,
               broken.count == 1 ? "sample was" : "samples were",
               Printable(broken.first.at(0).reason).c_str());
}

/// Several on one GPU speak over gloo; NCCL wants one for each.
void JoinRanks(Flags& flags) {
  const Launch launch = LaunchFromEnvironment();
  // Starting a program takes its time too.
  const int meeting = std::clamp(flags.rank_limit, 30, 300);
  RanksOptions options{.time_limit = std::chrono::seconds(flags.rank_limit),
                       .meeting_limit = std::chrono::seconds(meeting),
                       .even_alone = flags.ranks == 1};
  c10::Device& device = flags.trainer.device;
  if (device.is_cuda() && launch.size > 1) {
    const int local = launch.local_rank.value_or(launch.rank);
    const auto gpus = static_cast<int>(torch::cuda::device_count());
    device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local % gpus));
    if (launch.local_size.value_or(launch.size) > gpus) options.transport = Transport::kGloo;
  }
  options.device = device;
  flags.trainer.ranks = std::make_shared<Ranks>(launch, options);
}

fs::path OwnPath(const fs::path& path, const Ranks& ranks) {
  return ranks.alone() ? path : OfRank(path, ranks.rank());
}

/// On a terminal one line that is written over, elsewhere one now and then.
void ShowProgress(const StepReport& report, std::int64_t steps) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const std::int64_t done = report.step + 1;
  if (!terminal && done != 1 && done != steps && done % 10 != 0) return;
  std::string bar;
  if (terminal) {
    constexpr std::int64_t kWidth = 24;
    const std::int64_t full = done * kWidth / steps;
    bar = "[" + std::string(static_cast<std::size_t>(full), '=') +
          std::string(static_cast<std::size_t>(kWidth - full), ' ') + "] ";
  }
  std::string how = report.levers.ToString();
  if (report.optimizer && report.optimizer != OptimizerForm::kFused) {
    how += c10::str(", optimizer ", FormName(*report.optimizer));
  }
  std::fprintf(stderr, "%s%sstep %" PRId64 "/%" PRId64 "  loss %.4f  %.0f ms  peak %s  %s%s",
               terminal ? "\r\033[K" : "", bar.c_str(), done, steps, report.loss,
               report.seconds * 1000, FormatBytes(report.memory.peak_reserved).c_str(), how.c_str(),
               terminal && done != steps ? "" : "\n");
}

/// What the program keeps in a state beside the trainer's.
std::string ExtraOf(const Flags& flags, const Loader& loader) {
  nlohmann::json extra;
  extra["position"] = loader.position();
  extra["settings"] = RunSettings(flags);
  return extra.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A line for each flag that was another one. Refused, if that is not allowed.
std::vector<std::string> ChangesOf(const Flags& flags, const nlohmann::json& saved) {
  std::vector<std::string> changes;
  for (const auto& [name, now] : RunSettings(flags)) {
    const auto found = saved.find(name);
    if (found == saved.end() || !found->is_string() || *found == now) continue;
    const std::string before = found->get<std::string>();
    TORCH_CHECK(flags.allow_changes, flags.save, ": it was saved with ", name, " '", before,
                "', and now it is '", now, "'; give the same flags, or --allow-changes");
    changes.push_back(name + " was '" + Printable(before) + "' and is now '" + Printable(now) +
                      "'");
  }
  return changes;
}

/// Goes on where the state stopped.
void Resume(const Flags& flags, Trainer& trainer, Loader& loader) {
  const std::string& path = flags.save;
  // Read twice, so that nothing is loaded from a state that is then refused.
  const std::string text = trainer.ExtraIn(path);
  constexpr int kDeepest = 2;
  const auto extra = WithinJsonLimits(text, kDeepest)
                         ? nlohmann::json::parse(text, nullptr, /*exceptions=*/false)
                         : nlohmann::json();
  const bool ours = extra.is_object() && extra.contains("position") && extra.contains("settings") &&
                    extra["position"].is_number_unsigned() && extra["settings"].is_object();
  TORCH_CHECK(ours, path,
              ": it was saved by another program, and does not say which batch is next");
  const auto position = extra["position"].get<std::uint64_t>();
  TORCH_CHECK(position <= Loader::kLastPosition, path, ": it says that batch ", position,
              " is next, which cannot be");
  const std::vector<std::string> changes = ChangesOf(flags, extra["settings"]);
  trainer.Load(path);
  loader.Seek(static_cast<std::int64_t>(position));
  for (const auto& optimizer : trainer.optimizers()) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(flags.learning_rate);
  }
  if (flags.trainer.ranks->rank() != 0) return;
  for (const std::string& change : changes) std::fprintf(stderr, "%s\n", change.c_str());
  std::fprintf(stderr, "goes on after step %" PRId64 " of %s\n", trainer.steps(),
               Printable(path).c_str());
}

/// Asked to stop by Ctrl-C or by a scheduler. The step is finished first; asked again, it ends at
/// once.
volatile std::sig_atomic_t asked_to_stop = 0;
void AskToStop(int signal) {
  asked_to_stop = signal;
  std::signal(signal, SIG_DFL);
}

int Stopped(const Flags& flags, const Trainer& trainer) {
  if (flags.save.empty()) {
    std::fprintf(stderr, "\nstopped after step %" PRId64 "; nothing is saved, for want of --save\n",
                 trainer.steps());
  } else {
    std::fprintf(stderr, "\nstopped after step %" PRId64 "; saved, --resume goes on from there\n",
                 trainer.steps());
  }
  return 128 + asked_to_stop;
}

std::shared_ptr<TrainModel> ModelOf(const Flags& flags) {
  auto model = MakeModel(flags.model, flags.sizes);
  if (!flags.initial_weights.empty()) LoadWeights(flags.initial_weights, *model);
  if (flags.lora > 0) UseLora(*model, flags.lora, flags.trainer.ranks->rank() != 0);
  // Of a pipeline each rank takes its own layers there.
  if (flags.pipeline == 1) model->to(flags.trainer.device);
  return model;
}

void WriteWeights(const Flags& flags, Trainer& trainer, TrainModel& model) {
  if (flags.weights.empty()) return;
  Ranks& ranks = *flags.trainer.ranks;
  const auto whole = trainer.WholeModel();
  if (flags.trainer.team.pipeline) CollectLayers(model, *flags.trainer.team.pipeline, ranks);
  if (ranks.rank() != 0) return;
  if (flags.lora > 0) MergeForGood(model);
  SaveWeights(flags.weights, model);
}

/// Calls the function. Where torch or the model refuses sizes, its words know no flags: here they
/// are told.
template <class Function>
auto NamingFlags(const Flags& flags, Function function) {
  try {
    return function();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const DataError&) {
    throw;
  } catch (const NotFiniteError&) {
    throw;
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "with ", GivenSizes(flags), ": ", error.what_without_backtrace());
  }
}

void Train(const Flags& flags, Trainer& trainer, Loader& loader) {
  Ranks& ranks = *flags.trainer.ranks;
  const auto save = [&] { trainer.Save(flags.save, ExtraOf(flags, loader)); };
  std::optional<RunLog> log;
  if (!flags.log.empty()) log.emplace(OwnPath(flags.log, ranks));
  // All ranks stop after the same step.
  const auto stop = [&] { return ranks.Sum(asked_to_stop != 0 ? 1.0 : 0.0) > 0; };
  while (trainer.steps() < flags.steps && !stop()) {
    const StepReport report = NamingFlags(flags, [&] { return trainer.Step(loader.Next()); });
    if (log) log->Write(report);
    if (ranks.rank() == 0) ShowProgress(report, flags.steps);
    if (flags.save_every > 0 && trainer.steps() % flags.save_every == 0) save();
  }
  if (!flags.save.empty()) save();
}

/// The memory's history, for as long as it lives: written at its end, however that comes about.
class Recording {
 public:
  explicit Recording(const Flags& flags) {
    if (flags.snapshot.empty()) return;
    path_ = OwnPath(flags.snapshot, *flags.trainer.ranks);
    RecordMemory(flags.trainer.device);
  }
  ~Recording() {
    if (path_.empty()) return;
    try {
      WriteSnapshot(path_);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "plimsoll-train: %s\n", Printable(error.what()).c_str());
    }
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  fs::path path_;
};

void TellWhatIsNotDone(const Flags& flags) {
  if (flags.trainer.ranks->rank() != 0) return;
  for (const std::string& flag : FlagsWithoutEffect(flags)) {
    std::fprintf(stderr, "%s\n", flag.c_str());
  }
  for (const std::string& lever : flags.left_out) {
    std::fprintf(stderr, "of the plan this is not done here: %s\n", Printable(lever).c_str());
  }
}

int Run(Flags& flags) {
  Complete(flags);
  JoinRanks(flags);
  TellWhatIsNotDone(flags);
  torch::manual_seed(flags.seed);
  const auto source = MakeSource(flags);
  const Recording recording(flags);
  const auto model = NamingFlags(flags, [&] { return ModelOf(flags); });
  const SplitModel split = Split(model, flags, source);
  flags.trainer.weight = [model](const Batch& rows) { return model->Weight(rows); };
  Trainer trainer(
      split.trained, MakeOptimizer(flags, TrainedParameters(*split.trained)),
      [model](const Batch& rows) { return model->Loss(rows); }, flags.trainer);
  // The same model, but dropout of its own.
  torch::manual_seed(flags.seed + static_cast<std::uint64_t>(split.share));
  Loader loader(source, LoadingOf(flags, *source, split));
  if (flags.resume && fs::exists(flags.save)) Resume(flags, trainer, loader);
  std::signal(SIGINT, AskToStop);
  std::signal(SIGTERM, AskToStop);
  Train(flags, trainer, loader);
  WriteWeights(flags, trainer, *model);
  TellBroken(loader.broken());
  return asked_to_stop == 0 ? 0 : Stopped(flags, trainer);
}

/// Other processes do it, in which this is one rank of several.
int RunRanks(const Flags& flags, int argc, char** argv) {
  TORCH_CHECK(LaunchFromEnvironment().size == 1,
              "--ranks is for a program that starts its ranks itself; a launcher has done so here");
  Flags checked = flags;
  Complete(checked);
  std::vector<std::string> arguments{argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--ranks") {
      ++i;
    } else if (!word.starts_with("--ranks=")) {
      arguments.emplace_back(word);
    }
  }
  // Others notice at the limit, and then still have to find out who it is.
  return RunOnThisMachine(flags.ranks, arguments, flags.rank_limit + 10);
}

/// One line, whatever names and torch's own errors hold.
int Complain(std::string text, int code) {
  std::ranges::replace(text, '\n', ' ');
  // An error of ranks says itself whose it is.
  const char* const rank = std::getenv("RANK");
  const bool named = rank == nullptr || text.starts_with("rank ");
  std::fprintf(stderr, "plimsoll-train: %s%s\n",
               named ? "" : c10::str("rank ", Printable(rank), ": ").c_str(),
               Printable(text).c_str());
  return code;
}

}  // namespace

int TrainProgram(int argc, char** argv) {
  CLI::App app("Trains a model within a memory budget.", "plimsoll-train");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
    return flags.ranks > 1 ? RunRanks(flags, argc, argv) : Run(flags);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return Complain(error.what() + std::string("; see plimsoll-train --help"), 2);
  } catch (const c10::OutOfMemoryError& error) {
    // The answer is no: it does not fit.
    return Complain(error.what_without_backtrace(), 1);
  } catch (const c10::Error& error) {
    return Complain(error.what_without_backtrace(), 2);
  } catch (const std::exception& error) {
    return Complain(error.what(), 2);
  }
}

}  // namespace plimsoll::train
