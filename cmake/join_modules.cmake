# cmake -DFILES=a.js,b.js -DOUT=... -P join_modules.cmake: one script of modules, each after those that
# it imports. A module becomes a function that returns what it exports, so its other names stay its own.
#
# Browsers take the modules as they are; this takes a part of the language, a statement a line:
#   import {a, b} from "./m.js";      import * as m from "./m.js";
#   export [async] function f…        export class C…        export const c…
# Anything else that imports or exports fails the build, and so does a name that its module does not export.
cmake_minimum_required(VERSION 3.25)

function(refuse file why)
  message(FATAL_ERROR "${file}: ${why}\n(what join_modules.cmake understands is listed at its top)")
endfunction()

string(REPLACE "," ";" files "${FILES}")
set(joined "")
set(script "(() => {\n\"use strict\";\n")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)

  string(REGEX MATCHALL "(^|\n)import [^;\n]*" imports "${text}")
  foreach(import IN LISTS imports)
    if(NOT import MATCHES "^\n?import (\\* as [A-Za-z]+|{[A-Za-z, ]+}) from \"./([a-z_]+)[.]js\"$")
      refuse(${file} "cannot join '${import}'")
    endif()
    set(wanted "${CMAKE_MATCH_1}")
    set(module "${CMAKE_MATCH_2}")
    if(NOT module IN_LIST joined)
      refuse(${file} "imports ${module}.js, which must stand before ${name} in src/report/CMakeLists.txt")
    endif()
    if(wanted MATCHES "^{")
      string(REGEX MATCHALL "[A-Za-z]+" wanted "${wanted}")
      foreach(symbol IN LISTS wanted)
        if(NOT symbol IN_LIST exports_${module})
          refuse(${file} "${module}.js does not export ${symbol}")
        endif()
      endforeach()
    endif()
  endforeach()
  string(REGEX REPLACE "(^|\n)import \\* as ([A-Za-z]+) from \"./([a-z_]+)[.]js\";" "\\1const \\2 = module_\\3;"
         text "${text}")
  string(REGEX REPLACE "(^|\n)import ({[A-Za-z, ]+}) from \"./([a-z_]+)[.]js\";" "\\1const \\2 = module_\\3;"
         text "${text}")

  set(declaration "((async )?(function|class|const) [A-Za-z]+)")
  string(REGEX MATCHALL "(^|\n)export ${declaration}" exports "${text}")
  list(TRANSFORM exports REPLACE ".* " "")
  string(REGEX REPLACE "(^|\n)export ${declaration}" "\\1\\2" text "${text}")
  if(text MATCHES "(^|\n)[ \t]*((import|export)[^A-Za-z0-9_][^\n]*)" OR text MATCHES "[^A-Za-z0-9_.](import *[(][^\n]*)")
    refuse(${file} "cannot join a line with '${CMAKE_MATCH_2}'")
  endif()

  list(APPEND joined ${name})
  set(exports_${name} ${exports})
  list(JOIN exports ", " exports)
  string(APPEND script "const module_${name} = (() => {\n${text}return {${exports}};\n})();\n")
endforeach()
file(WRITE ${OUT} "${script}})();\n")
