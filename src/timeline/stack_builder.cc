#include "timeline/stack_builder.h"

#include <algorithm>

namespace plimsoll {
namespace {

/// The names of one stack, which many reports spell out.
constexpr std::size_t kLongestStackText = std::size_t{256} << 10;
/// Where what there may be is used up.
constexpr std::size_t kShortName = 64;
constexpr std::size_t kShortStack = 4;

std::size_t Scaled(std::size_t of_small_file, double share) {
  return static_cast<std::size_t>(static_cast<double>(of_small_file) * share);
}

std::size_t TakeUpTo(std::size_t& left, std::size_t wanted) {
  const std::size_t taken = std::min(left, wanted);
  left -= taken;
  return taken;
}

}  // namespace

std::string CutName(std::string_view name, std::size_t most) {
  if (name.size() <= most) return std::string(name);
  // Not in the middle of a character.
  while (most > 0 && (static_cast<unsigned char>(name[most]) & 0xc0) == 0x80) --most;
  return std::string(name.substr(0, most)) + "…";
}

StackBudget::StackBudget(double share)
    : frames_(Scaled(1'000'000, share)),
      text_(Scaled(std::size_t{8} << 20, share)),
      entries_(Scaled(4'000'000, share)),
      spelled_(Scaled(std::size_t{192} << 20, share)) {}

void StackBudget::Report(std::map<std::string, std::int64_t>& skipped) const {
  if (cut_names_ > 0) skipped["names that are too long, cut short"] += cut_names_;
  if (lost_frames_ > 0) skipped["frames of stacks that are too many or too deep"] += lost_frames_;
}

StringId StackBuilder::Shortened(StringId name) {
  if (table_.strings[name].size() <= longest_) return name;
  const auto [found, is_new] = shortened_.try_emplace(name.value, StringId());
  if (is_new) {
    found->second = table_.strings.Intern(CutName(table_.strings[name], longest_));
    ++budget_.cut_names_;
  }
  return found->second;
}

FrameId StackBuilder::AddFrame(Frame frame) {
  if (budget_.text_ == 0 && longest_ != kShortName) {
    longest_ = kShortName;
    shortened_.clear();
  }
  frame.function = Shortened(frame.function);
  frame.file = Shortened(frame.file);
  std::uint64_t hash = MixHash(MixHash(frame.function.value, frame.file.value),
                               static_cast<std::uint32_t>(frame.line));
  for (;; hash = MixHash(hash, 0)) {
    const std::uint32_t known = frames_.Find(hash);
    if (known == FlatMap::kMissing) break;
    if (table_.frame(FrameId(known)) == frame) return FrameId(known);
  }
  const FrameId id = AddNewFrame(frame);
  if (id != one_too_many_) frames_.Set(hash, id.value);
  return id;
}

FrameId StackBuilder::AddNewFrame(const Frame& frame) {
  if (TakeUpTo(budget_.frames_, 1) == 0) {
    ++budget_.lost_frames_;
    if (!one_too_many_.valid()) {
      one_too_many_ =
          table_.AddFrame({.function = table_.strings.Intern("(one of too many frames)"),
                           .file = table_.strings.Intern("")});
    }
    return one_too_many_;
  }
  const FrameId id = table_.AddFrame(frame);
  TakeUpTo(budget_.text_, TextOf(id));
  return id;
}

std::span<const FrameId> StackBuilder::AsManyAsMayBe(std::span<const FrameId> frames,
                                                     std::size_t& text) const {
  const bool room = frames.size() <= budget_.entries_;
  const std::size_t most = std::min(frames.size(), room ? kDeepestStack : kShortStack);
  const std::size_t most_text = std::min(kLongestStackText, budget_.spelled_);
  std::size_t kept = 0;
  text = 0;
  for (; kept < most && (kept < kShortStack || text < most_text); ++kept) {
    text += TextOf(frames[kept]);
  }
  return frames.first(kept);
}

StackId StackBuilder::AddStack(std::span<const FrameId> all) {
  std::size_t text = 0;
  const std::span<const FrameId> frames = AsManyAsMayBe(all, text);
  std::uint64_t hash = frames.size();
  for (const FrameId frame : frames) hash = MixHash(hash, frame.value);
  for (;; hash = MixHash(hash, 0)) {
    const std::uint32_t known = stacks_.Find(hash);
    if (known == FlatMap::kMissing) break;
    const std::span<const FrameId> other = table_.stack(StackId(known));
    if (std::equal(other.begin(), other.end(), frames.begin(), frames.end())) {
      return StackId(known);
    }
  }
  budget_.lost_frames_ += static_cast<std::int64_t>(all.size() - frames.size());
  TakeUpTo(budget_.entries_, frames.size());
  TakeUpTo(budget_.spelled_, text);
  const StackId id = table_.AddStack(frames);
  stacks_.Set(hash, id.value);
  return id;
}

}  // namespace plimsoll
