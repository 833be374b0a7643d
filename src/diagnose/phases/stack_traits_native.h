// What the name of a C++ function says: records of LibTorch programs have no Python frames, and
// most of their frames have neither file nor line. The signs are those of Python stacks
// (stack_traits.h), found in names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plimsoll {

/// Whose code a C++ function is.
enum class NativeOwner : std::uint8_t {
  kRuntime,  // C and C++ libraries, thread starts, std::function: says nothing
  kTorch,
  kUnknown,  // "??": a program without symbols
  kUser,
};

struct NativeFrame {
  NativeOwner owner = NativeOwner::kRuntime;
  std::uint16_t signs = 0;
  /// An optimizer by the name of its class alone: what it calls is its own work, unless that is the
  /// model.
  bool own_optimizer = false;
  /// Calls what was handed over as a std::function.
  bool callback = false;
};

NativeFrame ClassifyNative(std::string_view demangled);

/// "void ns::Class<int>::f<long>(long) const" → "ns::Class<int>::f<long>". A lambda has the name of
/// the function that it is written in.
std::string_view NativeName(std::string_view demangled);

/// NativeName without template arguments and anonymous namespaces: "ns::Class::f".
std::string ShortNativeName(std::string_view demangled);

/// The class of a member function without its namespaces: "Class" of "ns::Class::f"; "" of "f".
std::string_view ClassOf(std::string_view short_name);
/// The last part: "f" of "ns::Class::f".
std::string_view MemberOf(std::string_view short_name);

}  // namespace plimsoll
