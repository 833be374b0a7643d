#include "job/lowering/request_writer.h"

#include <algorithm>

namespace plimsoll {
namespace {

/// All requests together end here, where addresses would: a job of a real size stays far below,
/// and what is beyond fits nowhere.
constexpr Bytes kMostAsked = Bytes{1} << 60;

}  // namespace

void RequestWriter::BeginStage(Stage stage) {
  now_.stage = stage;
  LeaveCall();
}

void RequestWriter::BeginCall(std::uint32_t call, std::uint16_t stream) {
  now_.call = call;
  stream_ = stream;
}

std::uint32_t RequestWriter::Allocate(Bytes bytes, Category category) {
  return AddBlock(bytes, {.category = category}, Request::Kind::kAllocate);
}

std::uint32_t RequestWriter::AllocateBeside(Bytes bytes, Category category) {
  return AddBlock(bytes, {.category = category, .beside = true}, Request::Kind::kAllocate);
}

void RequestWriter::Borrow(Bytes bytes) {
  into_.borrows = true;
  AddBlock(bytes, {.beside = true}, Request::Kind::kBorrow);
}

void RequestWriter::Search(Bytes bytes) {
  into_.searches = true;
  AddBlock(bytes, {.beside = true}, Request::Kind::kSearch);
}

void RequestWriter::EmptyCache() {
  // Each request has a block, and this one is of nothing.
  AddBlock(0, {.beside = true}, Request::Kind::kSearch);
}

void RequestWriter::Release(std::uint32_t block) {
  held_ -= into_.blocks[block].requested;
  Add(0, block, Request::Kind::kFree);
}

std::uint32_t RequestWriter::AddBlock(Bytes bytes, const LoweredBlock& block, Request::Kind kind) {
  // What is left of a request, once those before it are counted.
  bytes = std::min(bytes, std::max<Bytes>(1, kMostAsked - asked_));
  asked_ += bytes;
  if (kind == Request::Kind::kAllocate) held_ += bytes;
  const auto number = static_cast<std::uint32_t>(into_.blocks.size());
  LoweredBlock& added = into_.blocks.emplace_back(block);
  added.requested = bytes;
  added.call = now_.call;
  added.pool = pool_;
  Add(bytes, number, kind);
  return number;
}

void RequestWriter::Add(Bytes bytes, std::uint32_t block, Request::Kind kind) {
  std::vector<Request>& requests = into_.workload.requests;
  requests.push_back({.size = bytes,
                      .allocation = block,
                      .event = static_cast<EventIndex>(requests.size()),
                      .stream = stream_,
                      .pool = into_.blocks[block].pool,
                      .kind = kind});
  into_.moments.push_back(now_);
}

}  // namespace plimsoll
