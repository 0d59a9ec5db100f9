# Finds pipes whose reader leaves before its input ends, in the shell files that are named to it; fails if there are
# any. The writer then dies by SIGPIPE if it still writes, and under `pipefail` that decides, by chance, what the line
# says. Readers to the end that do the same: `sed -n 1p`, `awk 'NR == 1'`, `grep PATTERN >/dev/null`, or a variable
# asked by `case`. scripts/test/hygiene.sh calls it.

function early(segment) {
    sub(/^[ \t({&]*/, "", segment)
    while (sub(/^([A-Za-z_]+=[^ \t]*|command|exec|sudo|env|LC_ALL=C)[ \t]+/, "", segment)) { }
    if (segment ~ /^(head|read)([ \t);]|$)/) return 1
    if (segment ~ /^[efz]?grep[ \t]/) {
        # Words in quotes are patterns.
        gsub(/'[^']*'|"[^"]*"/, "", segment)
        return segment ~ /[ \t](-[A-Za-z]*[qm]|--(quiet|silent|max-count))/
    }
    # q, after an address or in braces: 3q, /x/q, {p;q}.
    if (segment ~ /^sed[ \t]/) return segment ~ /[0-9\/;{ '"][qQ][0-9]*([;} '")]|$)/
    if (segment ~ /^g?awk[ \t]/) return segment ~ /[^A-Za-z_]exit([^A-Za-z_]|$)/ && segment !~ /END[^|]*[^A-Za-z_]exit/
    return 0
}

FNR == 1 { joined = "" }
/^[ \t]*#/ { next }
{
    line = joined $0
    if (line ~ /\\$/) { joined = substr(line, 1, length(line) - 1); next }
    if (line ~ /[^|]\|&?[ \t]*$/) { joined = line " "; next }
    joined = ""
    gsub(/\|\|/, "\001", line)
    parts = split(line, segment, "|")
    for (at = 2; at <= parts; at++)
        if (early(segment[at])) {
            print FILENAME ":" FNR ":" $0
            found = 1
            break
        }
}
END { exit found }
