// plimsoll-train: one of four models, trained within a memory budget.
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "base/printable.h"
#include "train/data/image_folder.h"
#include "train/data/loader.h"
#include "train/data/synthetic.h"
#include "train/data/text_file.h"
#include "train/models/cross_entropy.h"
#include "train/models/gpt.h"
#include "train/optimizers/adam8bit.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/host_optimizer.h"
#include "train/program/flags.h"
#include "train/run_log.h"

namespace plimsoll::train {
namespace {

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

std::shared_ptr<Source> MakeSource(const Flags& flags) {
  if (flags.data.empty()) return MadeOnTheSpot(flags);
  const ImageOptions images{.height = flags.image,
                            .width = flags.image,
                            .channels = static_cast<int>(flags.sizes.in_channels)};
  if (flags.model == "unet")
    return std::make_shared<SegmentationFolder>(flags.data, flags.sizes.classes, images);
  if (flags.model == "classifier") return std::make_shared<ImageFolder>(flags.data, images);
  TORCH_CHECK(flags.model == "gpt", "the mlp has no data but what is made on the spot");
  return std::make_shared<TextFile>(flags.data, flags.sizes.context);
}

std::shared_ptr<torch::optim::Optimizer> MakeOptimizer(const Flags& flags,
                                                       std::vector<at::Tensor> parameters) {
  const torch::optim::AdamWOptions adamw(flags.learning_rate);
  if (flags.optimizer == "adamw8bit")
    return std::make_shared<AdamW8bit>(std::move(parameters), adamw);
  if (flags.optimizer == "adamw-host")
    return std::make_shared<HostAdamW>(std::move(parameters), adamw);
  if (flags.optimizer == "sgd") {
    return std::make_shared<FusedSgd>(std::move(parameters),
                                      torch::optim::SGDOptions(flags.learning_rate).momentum(0.9));
  }
  return std::make_shared<FusedAdamW>(std::move(parameters), adamw);
}

void UseChunkedLoss(TrainModel& model) {
  auto* gpt = dynamic_cast<Gpt*>(&model);
  TORCH_CHECK(gpt != nullptr, "--chunked-loss is for the gpt");
  gpt->head_loss = [](const at::Tensor& hidden, const at::Tensor& weight,
                      const at::Tensor& targets) {
    return LinearCrossEntropy(hidden, weight, std::nullopt, targets);
  };
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
  std::fprintf(stderr, "%s%sstep %" PRId64 "/%" PRId64 "  loss %.4f  %.0f ms  peak %s  %s%s",
               terminal ? "\r\033[K" : "", bar.c_str(), done, steps, report.loss,
               report.seconds * 1000, FormatBytes(report.memory.peak_reserved).c_str(),
               report.levers.ToString().c_str(), terminal && done != steps ? "" : "\n");
}

/// Goes on where the state stopped.
void Resume(const std::string& path, Trainer& trainer, Loader& loader) {
  const std::string extra = trainer.Load(path);
  std::int64_t position = -1;
  std::from_chars(extra.data(), extra.data() + extra.size(), position);
  TORCH_CHECK(position >= 0, path,
              ": it was saved by another program, and does not say which "
              "batch is next");
  loader.Seek(position);
  std::fprintf(stderr, "goes on after step %" PRId64 " of %s\n", trainer.steps(),
               Printable(path).c_str());
}

int Run(Flags& flags) {
  Complete(flags);
  torch::manual_seed(flags.seed);
  const auto source = MakeSource(flags);
  const c10::Device device = flags.trainer.device;
  // Before the model, so that it is counted.
  MemoryOf(device);
  if (!flags.snapshot.empty()) RecordMemory(device);
  const auto model = MakeModel(flags.model, flags.sizes);
  model->to(device);
  if (flags.chunked_loss) UseChunkedLoss(*model);
  flags.trainer.weight = [model](const Batch& rows) { return model->Weight(rows); };
  Trainer trainer(
      model, MakeOptimizer(flags, model->parameters()),
      [model](const Batch& rows) { return model->Loss(rows); }, flags.trainer);
  Loader loader(source, {.batch = flags.batch,
                         .seed = flags.seed,
                         .drop_last = source->size() >= flags.batch,
                         .workers = flags.workers,
                         .pinned = device.is_cuda()});
  if (flags.resume && std::filesystem::exists(flags.save)) Resume(flags.save, trainer, loader);
  const auto save = [&] { trainer.Save(flags.save, std::to_string(loader.position())); };
  std::optional<RunLog> log;
  if (!flags.log.empty()) log.emplace(flags.log);
  while (trainer.steps() < flags.steps) {
    const StepReport report = trainer.Step(loader.Next().To(device, true));
    if (log) log->Write(report);
    ShowProgress(report, flags.steps);
    if (flags.save_every > 0 && trainer.steps() % flags.save_every == 0) save();
  }
  if (!flags.save.empty()) save();
  if (!flags.snapshot.empty()) WriteSnapshot(flags.snapshot);
  return 0;
}

/// One line, whatever names and torch's own errors hold.
int Complain(std::string text, int code) {
  std::ranges::replace(text, '\n', ' ');
  std::fprintf(stderr, "plimsoll-train: %s\n", Printable(text).c_str());
  return code;
}

}  // namespace
}  // namespace plimsoll::train

int main(int argc, char** argv) {
  using namespace plimsoll::train;
  CLI::App app("Trains a model within a memory budget.", "plimsoll-train");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
    return Run(flags);
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
