// What runs a job's loop, or serves its model: whoever uses one types its switches, not lines of
// PyTorch's. The one place where a framework is recognised, in a log, a traceback or the stacks of
// a record.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace plimsoll {

/// The outermost first: axolotl runs TRL, which runs Trainer, which runs accelerate, which runs
/// DeepSpeed's engine. People type the words of the outermost one that has any.
enum class Framework : std::uint8_t {
  kVerl,
  kAxolotl,
  kLlamaFactory,
  kUnsloth,
  kTorchtune,
  kTorchtitan,
  kMegatron,
  kDiffusers,
  kLightning,
  kTrl,
  kHfTrainer,  // transformers' Trainer
  kPeft,
  kAccelerate,
  kDeepSpeed,
  kVllm,
  kOwnLoop,  // none of them: a loop of the user's own
};
inline constexpr std::size_t kFrameworkCount = 16;

/// "LLaMA-Factory"; of kOwnLoop "a loop of one's own".
std::string_view FrameworkName(Framework framework);

/// Whether its users write a configuration and no loop: lines of Python are of no use to them.
bool IsConfigured(Framework framework);

class FrameworkSet {
 public:
  FrameworkSet& operator|=(FrameworkSet other);
  bool operator==(const FrameworkSet&) const = default;
  /// With those that it always runs on.
  void Add(Framework framework);
  void Remove(Framework framework) { bits_ &= ~BitOf(framework); }
  bool Has(Framework framework) const { return (bits_ & BitOf(framework)) != 0; }
  bool Empty() const { return bits_ == 0; }
  /// The outermost first.
  std::vector<Framework> List() const;

 private:
  static constexpr std::uint32_t BitOf(Framework framework) {
    return std::uint32_t{1} << static_cast<unsigned>(framework);
  }
  std::uint32_t bits_ = 0;
};

/// Of the file of a frame, with slashes or backslashes.
FrameworkSet FrameworksOfFile(std::string_view path);

/// Words of a log that one framework writes, or that are typed to start it, and no other; blanks
/// and case do not count in them.
struct FrameworkPhrase {
  std::string_view words;
  Framework framework;
};
std::vector<FrameworkPhrase> FrameworkPhrases();

}  // namespace plimsoll
