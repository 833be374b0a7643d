# Leaves of an answer what a golden case is about: awk -f select.awk -v names="NAME…" (separated by newlines)
# Text: `verdict` is all lines above the first heading; any other name is the beginning of a heading. A heading is a
# line at the left edge, below an empty line, with an indented line below it.
# JSON, as the program lays it out: a name is a path, such as `ranks.0.account`; `*` stands for any key or index, and
# `values` for what is neither a list nor an object at the top.
BEGIN {
  count = split(names, wanted, "\n")
}

function is_wanted(heading,   i) {
  for (i = 1; i <= count; ++i)
    if (heading == wanted[i] || (wanted[i] != "verdict" && index(heading, wanted[i]) == 1)) return 1
  return 0
}

# Whether the path of a line, or a beginning of it, is wanted.
function path_is_wanted(text,   i, n, k, part) {
  for (i = 1; i <= count; ++i) {
    if (wanted[i] == "values" && depth == 1 && text !~ /[\[{\]}]$/) return 1
    n = split(wanted[i], part, ".")
    if (n > depth) continue
    for (k = 1; k <= n && (part[k] == "*" || part[k] == path[k]); ++k) continue
    if (k > n) return 1
  }
  return 0
}

# Each line of a JSON document is one key or element; its indent tells how deep it is.
function take_json(line,   text) {
  match(line, /^ */)
  text = substr(line, RLENGTH + 1)
  depth = RLENGTH
  if (depth == 0) return
  if (text ~ /^[\]}]/) {
    sub(/,$/, "", text)
    if (path_is_wanted(text)) print line
    return
  }
  if (match(text, /^"[^"]*": /)) path[depth] = substr(text, 2, RLENGTH - 4)
  else path[depth] = next_index[depth]++
  next_index[depth + 1] = 0
  sub(/,$/, "", text)
  if (path_is_wanted(text)) print line
}

function take_text(line, below) {
  if (line ~ /^[^ ]/ && (NR <= 2 || before == "") && section != "" && below ~ /^ /) section = line
  if (section == "") section = "verdict"
  if (is_wanted(section)) print line
  before = line
}

NR == 1 {is_json = /^\{/}
is_json {take_json($0); next}
NR > 1 {take_text(held, $0)}
{held = $0}
END {if (!is_json && NR) take_text(held, "")}
