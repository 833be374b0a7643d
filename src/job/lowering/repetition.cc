#include "job/lowering/repetition.h"

#include <algorithm>
#include <set>

namespace plimsoll {
namespace {

bool Stays(const StorageBlocks& blocks, Storage storage) {
  return blocks.Of(storage) != StorageBlocks::kNone;
}

/// By storage: whether it is let go in these events.
std::vector<char> GoneIn(std::size_t storages, const std::vector<JobEvent>& events,
                         const EventSpan& span) {
  std::vector<char> gone(storages, 0);
  for (std::size_t i = span.begin; i < span.end; ++i) {
    if (events[i].kind == JobEvent::Kind::kFree) gone[events[i].index] = 1;
  }
  return gone;
}

}  // namespace

std::vector<MadeStorage> MadeIn(const Variant& variant, const std::vector<JobEvent>& events,
                                const EventSpan& span) {
  std::vector<MadeStorage> made;
  for (std::size_t i = span.begin; i < span.end; ++i) {
    if (events[i].kind != JobEvent::Kind::kCall) continue;
    const CallRecord& call = variant.calls[events[i].index];
    for (const NewStorage& fresh : call.fresh) {
      made.push_back({.storage = fresh.storage,
                      .op = call.op,
                      .where = call.where,
                      .bytes = fresh.bytes.least()});
    }
  }
  return made;
}

/// Either may have made more: the round before as DDP lays out its buckets there, the next as it
/// generates what it and further ones train with. Rounds are alike at their ends, where gradients
/// are made.
StoragePairs FindCounterparts(const std::vector<MadeStorage>& older,
                              const std::vector<MadeStorage>& last) {
  StoragePairs pairs;
  // Sizes that the data decide differ from step to step.
  const bool alike = std::ranges::equal(older, last, {}, &MadeStorage::op, &MadeStorage::op);
  std::size_t before_end = 0;
  const std::size_t most = std::min(older.size(), last.size());
  while (!alike && before_end < most &&
         older[older.size() - before_end - 1].Like(last[last.size() - before_end - 1])) {
    ++before_end;
  }
  std::size_t next = 0;
  const std::size_t older_end = older.size() - before_end;
  for (std::size_t i = 0; i + before_end < last.size(); ++i) {
    std::size_t found = next;
    while (found < older_end && !alike && !older[found].Like(last[i])) ++found;
    if (found == older_end) continue;
    pairs.emplace_back(older[found].storage, last[i].storage);
    next = found + 1;
  }
  for (std::size_t i = before_end; i > 0; --i) {
    pairs.emplace_back(older[older.size() - i].storage, last[last.size() - i].storage);
  }
  return pairs;
}

void Shift(StorageBlocks& blocks, const StoragePairs& pairs, KeptBlocks* kept) {
  for (const auto& [older, newer] : pairs) {
    if (kept != nullptr && Stays(blocks, older) && Stays(blocks, newer)) {
      (*kept)[newer].push_back(blocks.Of(older));
    }
    blocks.Move(newer, older);
  }
}

Repetition::Repetition(const Job& job, const Variant& variant, const std::vector<EventSpan>& steps,
                       StorageBlocks& blocks, RequestWriter& requests)
    : job_(job), blocks_(blocks), requests_(requests) {
  for (const EventSpan& step : steps) made_.push_back(MadeIn(variant, variant.events, step));
  counterparts_ = FindCounterparts(made_[made_.size() - 2], made_.back());
  FindLeftOver(variant.storages, variant.events, steps[steps.size() - 2], steps.back());
  if (made_.size() > 2) {
    FindLetGo(variant.storages, variant.events, steps[steps.size() - 2], steps.back());
  }
}

/// The capture ended before the last step let it go: a loader that has no more batches leaves a
/// loop before `zero_grad` at its top. In the order in which it goes.
void Repetition::FindLeftOver(std::size_t storages, const std::vector<JobEvent>& events,
                              const EventSpan& before, const EventSpan& last) {
  const std::vector<char> gone = GoneIn(storages, events, last);
  std::vector<Storage> stands_for(storages, kElsewhere);
  for (const auto& [older, newer] : counterparts_) {
    if (stands_for[older] == kElsewhere) stands_for[older] = newer;
  }
  for (std::size_t i = before.begin; i < before.end; ++i) {
    if (events[i].kind != JobEvent::Kind::kFree) continue;
    const Storage newer = stands_for[events[i].index];
    if (newer != kElsewhere && !gone[newer]) left_over_.push_back(newer);
  }
}

void Repetition::FindLetGo(std::size_t storages, const std::vector<JobEvent>& events,
                           const EventSpan& before, const EventSpan& last) {
  const std::vector<char> gone = GoneIn(storages, events, {before.begin, last.end});
  const std::vector<MadeStorage>& oldest = made_[made_.size() - 3];
  const std::vector<MadeStorage>& older = made_[made_.size() - 2];
  // What the two do alike: at its end the first step makes the optimizer's state.
  for (std::size_t i = 0; i < std::min(oldest.size(), older.size()); ++i) {
    if (oldest[i].op != older[i].op) return;
    if (gone[oldest[i].storage] && !gone[older[i].storage]) {
      let_go_.emplace_back(oldest[i].storage, older[i].storage);
    }
  }
}

bool Repetition::BothStay(const std::pair<Storage, Storage>& pair) const {
  return Stays(blocks_, pair.first) && Stays(blocks_, pair.second);
}

void Repetition::Begin(int number) {
  for (const auto& [oldest, older] : let_go_) {
    if (!Stays(blocks_, oldest)) blocks_.Move(older, oldest);
  }
  if (most() > 0) NoteKept(number);
  Shift(blocks_, counterparts_);
  if (most() > 0 && job_.keeper->before) lets_go_of_ = number - most();
}

void Repetition::BeforeCall(const CallRecord& call) {
  if (!lets_go_of_) return;
  const bool is_kept = std::ranges::any_of(
      call.fresh, [&](const NewStorage& fresh) { return keeps_.contains(fresh.storage); });
  if (is_kept) LetGo(*std::exchange(lets_go_of_, std::nullopt));
}

void Repetition::End(int number) {
  lets_go_of_.reset();
  if (most() > 0) LetGo(number - most());
}

/// What stays of the step before the last one.
void Repetition::NoteKept(int number) {
  std::vector<Storage> kept;
  for (const auto& pair : counterparts_) {
    if (!BothStay(pair)) continue;
    kept.push_back(pair.first);
    keeps_.insert(pair.second);
  }
  if (number == static_cast<int>(made_.size())) NoteKeptBefore({kept.begin(), kept.end()});
  for (const Storage storage : kept) Lose(storage, number - 2);
}

/// Of the captured steps before those two what is like that. The first makes more that stays.
void Repetition::NoteKeptBefore(const std::unordered_set<Storage>& kept) {
  std::multiset<std::pair<StringId, StringId>> known;
  for (const MadeStorage& made : made_[made_.size() - 2]) {
    if (kept.contains(made.storage)) known.emplace(made.op, made.where);
  }
  for (std::size_t step = 0; step + 2 < made_.size(); ++step) {
    auto left = known;
    for (const MadeStorage& made : made_[step]) {
      const auto like = left.find({made.op, made.where});
      if (like == left.end() || !Stays(blocks_, made.storage)) continue;
      left.erase(like);
      Lose(made.storage, static_cast<std::int64_t>(step));
    }
  }
}

void Repetition::Lose(Storage storage, std::int64_t step) {
  std::vector<std::uint32_t>& blocks = kept_of_steps_[step];
  for (const StorageBlocks::Held& held : blocks_.TakeAllHeld(storage)) {
    blocks.push_back(held.block);
  }
  if (const auto block = blocks_.Leave(storage)) blocks.push_back(*block);
}

/// Of what is kept of this step, and of those before it.
void Repetition::LetGo(std::int64_t step) {
  while (!kept_of_steps_.empty() && kept_of_steps_.begin()->first <= step) {
    for (const std::uint32_t block : kept_of_steps_.begin()->second) requests_.Release(block);
    kept_of_steps_.erase(kept_of_steps_.begin());
  }
}

}  // namespace plimsoll
