#include "cli/tuning_flags.h"

#include <fmt/format.h>

#include <charconv>

namespace plimsoll {
namespace {

constexpr std::int64_t kLargestRank = 65536;

std::optional<Error> ReadShare(const std::string& text, std::optional<double>& to) {
  double share = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, share);
  if (read.ec != std::errc() || read.ptr != end || !(share >= 0 && share < 1)) {
    return Error{.message = fmt::format("'{}' is no share that can be dropped", text),
                 .hint = "give a number from 0 to below 1, such as 0.05"};
  }
  to = share;
  return std::nullopt;
}

}  // namespace

void AddTuningFlags(Flags& flags, Tuning& to) {
  flags.Switch("--full", to.full,
               "with hf:NAME or hf:config.json: all weights are trained, as transformers' Trainer "
               "does it in bf16; without --full, --lora and --qlora a plain loop does");
  flags.Count("--lora", "R", to.lora, "likewise: LoRA of rank R, as PEFT makes it", 1,
              kLargestRank);
  flags.Count("--qlora", "R", to.qlora,
              "likewise: LoRA of rank R over weights that bitsandbytes keeps in 4 bits", 1,
              kLargestRank);
  flags.Text("--targets", "NAMES", to.targets,
             "layers of LoRA by the ends of their names (q_proj,v_proj); all-linear unless given");
  flags.Value("--lora-dropout", "P", "of LoRA's inputs (0)",
              [&to](const std::string& text) { return ReadShare(text, to.dropout); });
  flags.Switch("--no-checkpointing", to.no_checkpointing,
               "with --full, --lora or --qlora: without gradient checkpointing, which is on else");
}

std::optional<Error> CheckTuning(const Tuning& tuning, bool configuration) {
  const std::vector<std::string> words = tuning.Words();
  if (words.empty()) return std::nullopt;
  if (!configuration) {
    return Error{.message = fmt::format("{} goes with a model's name or configuration", words[0]),
                 .hint =
                     "give hf:llama-3.1-8b, or hf:config.json; a captured step is trained as it "
                     "was captured"};
  }
  if (tuning.Ways() > 1) {
    return Error{.message = "--full, --lora and --qlora are three ways to train a model",
                 .hint = "give one of them"};
  }
  if (tuning.Ways() == 0) {
    return Error{.message = fmt::format("{} goes with --full, --lora or --qlora", words[0]),
                 .hint = "add one of them: --lora 16"};
  }
  if (tuning.full && (tuning.targets || tuning.dropout)) {
    return Error{.message = fmt::format("{} is LoRA's, and --full trains all weights",
                                        tuning.targets ? "--targets" : "--lora-dropout"),
                 .hint = "give --lora 16 in place of --full, or leave it out"};
  }
  return std::nullopt;
}

}  // namespace plimsoll
