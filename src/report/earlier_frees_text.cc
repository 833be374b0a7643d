#include <fmt/format.h>

#include "report/predict.h"

namespace plimsoll {
namespace {

using EditKind = ReleaseEdit::Kind;

std::string At(const std::string& where) { return where.empty() ? "" : " (" + where + ")"; }

/// "`del out, flat` before train.py:12 in train_step, `del x` before train.py:9 in loss"
std::string Deletions(const EarlierFree& change) {
  std::string text;
  for (std::size_t i = 0; i < change.edits.size(); ++i) {
    const EarlierFree::Edit& edit = change.edits[i];
    const bool goes_on = i > 0 && change.edits[i - 1].where == edit.where;
    const bool ends = i + 1 == change.edits.size() || change.edits[i + 1].where != edit.where;
    if (goes_on) {
      text += ", " + edit.name;
    } else {
      text += (text.empty() ? "`del " : ", `del ") + edit.name;
    }
    if (ends) text += "` before " + edit.where;
  }
  return text;
}

std::string WhatToDo(const EarlierFree& change) {
  const EarlierFree::Edit& edit = change.edits.front();
  switch (edit.kind) {
    case EditKind::kVariable:
      return Deletions(change);
    case EditKind::kPlace:
      return fmt::format(
          "Let go of `{}` when the step ends: set it to None, or keep `.detach().cpu()` of it",
          edit.name);
    case EditKind::kGraph:
      return fmt::format(
          "Keep `.detach()` or `.item()` in `{}`: a number with its graph keeps all that it was "
          "computed from",
          edit.name);
    case EditKind::kBatch:
      return "`del` the batch before the backward";
    case EditKind::kGradients:
      return fmt::format("Call `optimizer.zero_grad()` right after `optimizer.step()`{}",
                         At(edit.where));
  }
  return "";
}

std::string Saved(const PeakSaving& saved) {
  if (saved.allocated == 0 && saved.device == 0) return "Saves only together with the others";
  return fmt::format("Saves {} of allocated memory at the peak, {} on the device",
                     FormatBytes(saved.allocated),
                     saved.device == 0 ? "nothing" : FormatBytes(saved.device));
}

}  // namespace

std::vector<std::string> EarlierFreeTexts(const EarlierFrees& frees, const Prediction& p) {
  std::vector<std::string> texts;
  for (const EarlierFree& change : frees.changes) {
    std::string text = WhatToDo(change);
    if (!change.made_at.empty()) {
      text +=
          fmt::format(" ({} at {})", change.made_there_alone ? "made" : "the largest part is made",
                      change.made_at);
    }
    text += ". " + Saved(change.saved);
    if (change.by_step > 0) {
      text += fmt::format(" after {} steps, and with every further step {} more", p.steps,
                          FormatBytes(change.by_step));
    }
    texts.push_back(text + ".");
  }
  if (frees.changes.size() > 1)
    texts.push_back("All of them together: " + Saved(frees.together) + ".");
  if (frees.fits && !p.trial.fits) texts.back() += fmt::format(" Then batch {} fits.", p.batch);
  return texts;
}

}  // namespace plimsoll
