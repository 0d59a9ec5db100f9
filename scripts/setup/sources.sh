# The source packages of a suite of the machine's own distribution, fetched as apt fetches anything: from its mirror, with
# its keys and its proxy, its lists and settings left alone. Sourced by scripts that build a release line beside the
# system's own; they define `fail`.
#
#   fetch_sources SUITE FOLDER PACKAGE...     unpacks each into FOLDER; the log is FOLDER/log
fetch_sources() {
    local suite=$1 work=$2 missing=() mirror apt
    shift 2
    for program in apt-get dpkg-source make perl cc; do command -v $program >/dev/null || missing+=("$program"); done
    [ ${#missing[@]} = 0 ] || fail "missing: ${missing[*]} (Debian: build-essential dpkg-dev)"
    mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Component: main' |
        awk '!n && ($1 == "Debian" || $1 == "Ubuntu") { n = 1; print $2 }')
    [ -n "$mirror" ] || fail "no sources: apt knows no mirror of Debian's or Ubuntu's (apt-get update?)"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    echo "deb-src $mirror $suite main" >"$work/sources.list"
    apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
        -o "Dir::Cache=$work/cache" -o APT::Update::Error-Mode=any)
    "${apt[@]}" update 2>"$work/log" && (cd "$work" && "${apt[@]}" --only-source source "$@") >>"$work/log" 2>&1 ||
        fail "no source of $* in the suite $suite: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")"
}
