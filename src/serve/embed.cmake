# Writes OUT, a C++ source with the files PAGE and OPENAPI as string literals.
file(READ "${PAGE}" page)
file(READ "${OPENAPI}" openapi)
file(WRITE "${OUT}" "// Generated from web/ by embed.cmake.
#include \"serve/page.h\"

namespace perigee::serve {

std::string_view page() { return R\"perigee(${page})perigee\"; }
std::string_view openapi() { return R\"perigee(${openapi})perigee\"; }

}  // namespace perigee::serve
")
