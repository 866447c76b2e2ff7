# Compiler settings shared by every target. The numerics contract needs -ffp-contract=off and no fast-math; x86-64-v3
# (AVX2 + FMA) is the oldest CPU the identity x86-bf16-v1 runs on.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3;-ffp-contract=off;-fno-fast-math;-Wall;-Wextra;-Wno-missing-field-initializers>")
if(PERIGEE_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(PERIGEE_TESTS)
  add_compile_definitions(PERIGEE_TEST_HOOKS=1)
endif()
# Of stages and their kernels. Checks in unrolled loops take GCC half an hour a file at -O3, seconds at -O1.
set(PERIGEE_STAGE_OPTIMISATION -O3)
if(PERIGEE_SANITIZE)
  set(PERIGEE_STAGE_OPTIMISATION -O1)
  add_compile_options(-fsanitize=${PERIGEE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PERIGEE_SANITIZE})
endif()
find_program(PERIGEE_CCACHE ccache)
# Reading fmt, Boost.JSON and the standard headers takes most of a first build; a precompiled header reads them once a folder. ccache
# cannot keep what is compiled with one, so a machine that has it goes without.
if(PERIGEE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PERIGEE_CCACHE})
endif()
set(PERIGEE_COMMON_HEADERS <algorithm> <functional> <map> <memory> <string> <vector> <fmt/format.h> <fmt/ranges.h>)

# perigee_precompile(TARGET): PERIGEE_COMMON_HEADERS, and Boost.JSON where the target has it.
function(perigee_precompile target)
  if(PERIGEE_CCACHE)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${PERIGEE_COMMON_HEADERS} ${ARGN})
endfunction()
find_program(PERIGEE_MOLD mold)
if(PERIGEE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

include_directories(${CMAKE_SOURCE_DIR}/src)
find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
