// What a program attaches to its events: texts, and dictionaries of its own.
#include <fmt/format.h>

#include <bit>
#include <optional>
#include <string>

#include "files/json.h"
#include "readers/snapshot/builder.h"

namespace plimsoll::snapshot {
namespace {

/// "0.5", "True", "a text"; nothing where it is no plain value.
std::optional<std::string> LabelOf(const Words& words, Value value) {
  constexpr std::size_t kLongestLabel = 80;
  switch (value.kind) {
    case Kind::kString:
      return std::string(words.TextOf(value).substr(0, kLongestLabel));
    case Kind::kInt:
      return std::to_string(value.AsInt());
    case Kind::kFloat:
      return fmt::format("{}", std::bit_cast<double>(value.payload));
    case Kind::kBool:
      return value.payload != 0 ? "True" : "False";
    case Kind::kNone:
      return "None";
    default:
      return std::nullopt;
  }
}

/// Whether only a snapshot's own dictionaries have this key. They may be written key by key.
bool IsOwnKey(Key key) {
  return key != Key::kUnknown && key != Key::kCategory && key != Key::kAllocated;
}

/// "phase=train, layer=3" of a dictionary that is none of a snapshot's own: what a program attaches
/// to its events may be one. Nothing where a value is no plain one.
std::optional<std::string> LabelsOf(const Words& words, std::span<const Value> items) {
  constexpr std::size_t kMostLabels = 16;
  if (items.empty() || items.size() > 2 * kMostLabels) return std::nullopt;
  std::string labels;
  bool own = true;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::optional<std::string> value = LabelOf(words, items[i + 1]);
    if (items[i].kind != Kind::kString || !value) return std::nullopt;
    own = own && IsOwnKey(words.KeyOf(items[i]));
    if (!labels.empty()) labels += ", ";
    labels += *LabelOf(words, items[i]) + "=" + *value;
  }
  return own ? std::nullopt : std::optional(labels);
}

}  // namespace

/// A dictionary that is none of a snapshot's own becomes a text.
void Builder::TakeLabels(Value& dict, std::span<const Value> items) {
  const std::optional<std::string> labels = LabelsOf(words_, items);
  // A few bytes that refer to long texts could become many of them.
  if (!labels || labels->size() > label_budget_) return;
  label_budget_ -= labels->size();
  dict = String(*labels);
}

/// Most events have "N/A", outside of everything that torch.compile does.
void Builder::NoteContext(std::size_t row, Value value) {
  if (value.kind != Kind::kString || StringId(value.payload) == no_context_) return;
  const std::string_view text = words_.TextOf(value);
  if (text.empty() || text == "N/A") {
    no_context_ = StringId(value.payload);
    return;
  }
  AddRow(
      tables_.budget, tables_.contexts,
      EventNote{static_cast<EventIndex>(row), stack_builder_.Shortened(StringId(value.payload))});
}

/// The newest releases write a dictionary as the text of its JSON: "phase=rollout" of
/// {"phase": "rollout"}. Anything else stays as it is.
StringId Builder::MetadataOf(StringId text) {
  const std::string_view written = tables_.stacks.strings[text];
  if (!written.starts_with('{') || !written.ends_with('}')) return text;
  const auto [known, fresh] = metadata_.try_emplace(text.value, text);
  if (!fresh) return known->second;
  ReadBudget small = tables_.budget;
  const Result<Json> json = ReadJson(written, small);
  if (!json || !json->is_object() || json->empty()) return text;
  std::string labels;
  for (const auto& [key, value] : json->members()) {
    const std::string plain = value.is_text() ? *value.text() : WriteJson(value);
    labels += (labels.empty() ? "" : ", ") + key + "=" + plain;
  }
  if (labels.size() > label_budget_) return text;
  label_budget_ -= labels.size();
  return known->second = words_.Add(labels);
}

}  // namespace plimsoll::snapshot
