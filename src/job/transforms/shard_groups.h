// Which parameters FSDP2 gathers and reduces together, from their names.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

/// "transformer.h.3" of "transformer.h.3.attn.c_attn": the outermost member of a numbered list of
/// modules; empty where no part is a number.
std::string_view BlockOf(std::string_view path);

struct ShardGroup {
  /// The path of the module; empty for the root.
  std::string module;
  /// Its parameters: indices into the variant's model tensors.
  std::vector<std::uint32_t> parameters;
};

/// The blocks in the order of their first parameters, and the root with all the rest. A block is a
/// member of a numbered list of modules ("transformer.h.3"), the outermost one.
class ShardGroups {
 public:
  static constexpr std::size_t kRoot = 0;

  ShardGroups(const Job& job, const Variant& variant);
  /// The modules that the script shards; as above where no script tells. Of modules inside of each
  /// other the innermost has a parameter.
  static ShardGroups AsSharded(const Job& job, const Variant& variant);

  /// The same without some parameters, by storage.
  ShardGroups Without(const Variant& variant, const std::set<Storage>& parameters) const;

  /// The root is the first.
  const std::vector<ShardGroup>& all() const { return groups_; }
  /// The names of the lists whose members are blocks.
  const std::vector<std::string>& lists() const { return lists_; }
  /// The group in which the module with this path is.
  std::size_t Of(std::string_view module) const;

 private:
  ShardGroups() = default;
  void AddToGroup(std::string_view block, std::uint32_t parameter);
  ShardGroups WithoutEmpty() const;

  std::vector<ShardGroup> groups_ = std::vector<ShardGroup>(1);
  std::vector<std::string> lists_;
  std::map<std::string, std::size_t, std::less<>> of_block_;
};

}  // namespace plimsoll
