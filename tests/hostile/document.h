// A small snapshot as a tree, so that a test can spoil any part of it and write the rest as a
// correct pickle or as correct JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plimsoll::hostile {

struct Node {
  enum Kind { kNone, kBool, kInt, kFloat, kText, kList, kDict };
  Kind kind = kNone;
  std::int64_t number = 0;
  std::string text = {};
  std::vector<Node> items = {};                           // of a list
  std::vector<std::pair<std::string, Node>> fields = {};  // of a dict
};

/// Three allocations, one of them freed, one refused; with stacks, settings and an annotation.
Node SmallSnapshot();

/// Every node of the tree, parents before their children.
std::vector<Node*> AllNodes(Node& root);

/// Protocol 4, as CPython writes it.
std::string AsPickle(const Node& root);
std::string AsJson(const Node& root);

}  // namespace plimsoll::hostile
