# cmake -DPROGRAM=… -DNOTICES=… -DOUT=… -P write_share.cmake: what lies in share/ beside the program.
cmake_minimum_required(VERSION 3.25)

# write(FILE ARGUMENTS...): what the program prints.
function(write file)
  get_filename_component(folder ${OUT}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${OUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${OUT})
write(man/man1/plimsoll.1 man)
file(READ ${OUT}/man/man1/plimsoll.1 text)
# "\fBplimsoll\-explain\fR(1)" under SEE ALSO: the commands that have a page.
string(REGEX MATCHALL "plimsoll[\\]-[a-z]+" pages "${text}")
foreach(page IN LISTS pages)
  string(REGEX REPLACE ".*-" "" command ${page})
  write(man/man1/plimsoll-${command}.1 man ${command})
endforeach()
write(bash-completion/completions/plimsoll completion bash)
write(zsh/site-functions/_plimsoll completion zsh)
write(fish/vendor_completions.d/plimsoll.fish completion fish)

# Licences of the libraries ask to go with a program that contains them.
set(text "")
foreach(package libfmt-dev nlohmann-json3-dev zlib1g-dev liblzma-dev libzstd-dev libre2-dev libsqlite3-dev node-d3)
  if(EXISTS ${NOTICES}/${package}/copyright)
    file(READ ${NOTICES}/${package}/copyright licence)
    string(APPEND text "==== ${package} ====\n\n${licence}\n\n")
  endif()
endforeach()
if(text)
  file(WRITE ${OUT}/doc/plimsoll/LIBRARIES "${text}")
endif()
