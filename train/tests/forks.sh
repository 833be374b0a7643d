# For scripts that start plimsoll-train often: run WORD... is "$program" WORD..., to its end, in a process that
# "$forks" (train/tests/forks.cc) forks. By night it is started each time, as people do. Needs "$folder".
# shellcheck shell=bash disable=SC2154
coproc FORKS { exec "$forks"; }
# So that it is there in ( ) too.
exec {ask_forks}>&"${FORKS[1]}" {forks_answer}<&"${FORKS[0]}"

run() {
  if [[ -n ${PLIMSOLL_NIGHTLY:-} ]]; then
    "$program" "$@"
    return
  fi
  printf '%s\0' "$@" >"$folder/words"
  echo "$BASHPID $folder/words" >&"$ask_forks"
  local code
  read -r code <&"$forks_answer"
  return "$code"
}
