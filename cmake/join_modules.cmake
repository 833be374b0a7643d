# cmake -DFILES=a.js,b.js -DOUT=... -P join_modules.cmake: one script of modules, each after those that
# it imports. A module becomes a function that returns what it exports, so its other names stay its own.
# One line an import, `import {a, b} from "./m.js";` or `import * as m from "./m.js";`, is all it knows.
string(REPLACE "," ";" files "${FILES}")
set(script "(() => {\n\"use strict\";\n")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(REGEX REPLACE "(^|\n)import \\* as ([A-Za-z]+) from \"./([a-z_]+)[.]js\";" "\\1const \\2 = module_\\3;"
         text "${text}")
  string(REGEX REPLACE "(^|\n)import ([^\n]*) from \"./([a-z_]+)[.]js\";" "\\1const \\2 = module_\\3;" text "${text}")
  string(REGEX MATCHALL "\nexport (async )?(function|class|const) [A-Za-z]+" exports "${text}")
  list(TRANSFORM exports REPLACE ".* " "")
  list(JOIN exports ", " exports)
  string(REGEX REPLACE "(^|\n)export " "\\1" text "${text}")
  string(APPEND script "const module_${name} = (() => {\n${text}return {${exports}};\n})();\n")
endforeach()
file(WRITE ${OUT} "${script}})();\n")
