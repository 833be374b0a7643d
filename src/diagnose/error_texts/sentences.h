// The parts of an explanation that are sentences or lines made from one message's figures.
#pragma once

#include <string>
#include <vector>

#include "diagnose/error_texts/causes.h"

namespace plimsoll {

/// The account of one message. Its lines add up to the limit or to the capacity, where the text
/// says it (account.cc).
struct TextAccount {
  ShareBasis of = ShareBasis::kHeld;
  std::vector<AccountLine> lines = {};
};
/// Of the process's limit where that is why the request failed, else of the device.
TextAccount AccountOf(const Figures& figures, OomCause why);
/// Of the device, also where a limit was met.
std::vector<AccountLine> DeviceLines(const Figures& figures);
/// "77.41 GiB in use by this process - 76.93 GiB reserved = 492.00 MiB outside PyTorch"
/// (account.cc).
std::vector<std::string> ArithmeticOf(const Figures& figures);
/// What the numbers mean and what to beware of, in sentences.
std::vector<std::string> NotesOf(const Figures& figures);
/// What was asked for, the gravest finding's own sentence, what fills the device.
std::string VerdictOf(const Figures& figures, const Judgement& judgement);
/// How to record what this message does not tell.
RecordAdvice RecordNext(const OomMessage& message);

}  // namespace plimsoll
