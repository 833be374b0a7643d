// The files of the report page as they were when the program was built (src/report/CMakeLists.txt),
// and the hashes by which the page's security policy names what may run and style it.
#pragma once

#include <string>

namespace plimsoll {

/// web/page.html, with names in double braces for the rest.
std::string WebPage();
std::string WebStyle();
std::string WebStyleSha256();
/// web/*.js as one script.
std::string WebScript();
std::string WebScriptSha256();
/// d3, which scales, zooms and lays out, and its licence.
std::string WebLibrary();
std::string WebLibrarySha256();
std::string WebLicence();

}  // namespace plimsoll
