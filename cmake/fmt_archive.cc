// fmt as an archive, from its headers: Debian and Ubuntu install it as a shared library only.
// Compiled where PLIMSOLL_PORTABLE is on; fmt::fmt-header-only would do the same in every file,
// which takes half as long again.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// The templates that format.h declares and leaves to the library.
template dragonbox::decimal_fp<float> dragonbox::to_decimal<float>(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal<double>(double) noexcept;
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
