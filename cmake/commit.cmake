# Writes OUT with PERIGEE_COMMIT, the short hash of HEAD (with + when the tree differs from it), if it changed.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty=+ --exclude=* OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#pragma once\n#define PERIGEE_COMMIT \"${commit}\"\n")
