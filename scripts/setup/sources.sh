# The source packages of a suite of the machine's own distribution, fetched as apt fetches anything: from its mirror, with
# its keys and its proxy, its lists and settings left alone. Sourced by scripts that build a release line beside the
# system's own; they define `fail`.
#
#   fetch_sources SUITE FOLDER PACKAGE...     unpacks each into FOLDER; the log is FOLDER/log
#
# A suite can list several versions of a package, and a mirror can lack files of a version that it lists. The newest
# version whose files are all there is taken. If none is whole, the newest upstream release is taken without the
# distribution's patches, and standard error says so. apt checks every file against the signed list.
fetch_sources() {
    local suite=$1 work=$2 missing=() mirror apt package
    shift 2
    for program in apt-get apt-cache dpkg-source make perl cc; do command -v $program >/dev/null || missing+=("$program"); done
    [ ${#missing[@]} = 0 ] || fail "missing: ${missing[*]} (Debian: build-essential dpkg-dev)"
    mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Component: main' |
        awk '!n && ($1 == "Debian" || $1 == "Ubuntu") { n = 1; print $2 }')
    [ -n "$mirror" ] || fail "no sources: apt knows no mirror of Debian's or Ubuntu's (apt-get update?)"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    echo "deb-src $mirror $suite main" >"$work/sources.list"
    apt=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists"
        -o "Dir::Cache=$work/cache" -o APT::Update::Error-Mode=any)
    apt-get "${apt[@]}" update 2>"$work/log" || no_source "$*"
    for package; do
        fetch_source "$package" || no_source "$package"
    done
}

no_source() {
    fail "no source of $* in the suite $suite: $(grep -m1 '^E:' "$work/log" || tail -n 1 "$work/log")"
}

# One package, with the names of fetch_sources.
fetch_source() {
    local versions version
    mapfile -t versions < <(apt-cache "${apt[@]}" showsrc "$1" 2>"$work/log" |
        awk -v name="$1" '$1 == "Package:" { own = $2 == name } own && $1 == "Version:" { print $2 }' | sort -rV)
    [ ${#versions[@]} != 0 ] || echo "E: it lists none" >>"$work/log"
    for version in "${versions[@]}"; do
        (cd "$work" && apt-get "${apt[@]}" --only-source source "$1=$version") >>"$work/log" 2>&1 && return
    done
    for version in "${versions[@]}"; do
        (cd "$work" && apt-get "${apt[@]}" --only-source --tar-only source "$1=$version" &&
            tar -xf "$1_${version%-*}".orig.tar.*[!c]) >>"$work/log" 2>&1 || continue
        echo "sources: the mirror lacks files of $1 $version: the upstream release is taken without its patches" >&2
        return
    done
    return 1
}
