# Builds programs of upstream projects, which takes minutes, only when bin/ and a cache lack them. kube/build.sh,
# kube/previous.sh and node/programs/build.sh source this file and then call build_upstream.
#
# A program is built when one hash differs: that of the Go files, go.mod, go.sum, the Go version and the flags.
# bin/.PROGRAM.sum keeps the hash of the program in bin/; finished files are also kept by hash in ${XDG_CACHE_HOME:-~/.cache}/atoll/NAME, for
# other checkouts on this machine. The builds are reproducible: no paths, no dates, no cgo.
#
# The caller's directory is that of the module. It sets:
#
#   name       of the directory in the cache
#   program    the main file in bin/, which also names the module in messages
#   version    what "PROGRAM version" prints
#   built      what the build makes, in words
#   outputs    all files that the build makes, relative to bin/
#   flags      of go build
#   recipe     optional: further text that the hash has
#   foreign    directories below the module, of which no file is part of the programs
#   compile    a function that builds all outputs into the directory that it is given
#   link       a function that makes links in bin/

kept=3 # builds in the cache
go=${GO:-go}
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly GOAMD64=v1

# stamp_version prints the linker's flags that give a Kubernetes version to a program.
stamp_version() {
	local package minor=${version#v1.}
	minor=${minor%%.*}
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		printf ' %s' "-X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
		printf ' %s' "-X $package.gitCommit=unknown -X $package.gitTreeState=clean"
		printf ' %s' "-X $package.buildDate=2026-07-22T18:07:38Z" # of the release, so that a build says the same tomorrow
	done
}

digest() {
	local -a except=()
	local directory
	for directory in "${foreign[@]}"; do except+=(! -path "./$directory/*"); done
	{
		find . -name '*.go' ! -name '*_test.go' "${except[@]}" -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
		sha256sum go.mod go.sum
		"$go" version
		"$go" env GOOS GOARCH GOEXPERIMENT
		printf '%s\n' "${flags[@]}" ${recipe:+"$recipe"}
	} | sha256sum | cut -c1-32
}

# works says whether a directory has all outputs, and the main program runs.
works() {
	local output
	for output in "${outputs[@]}"; do [[ -s $1/$output ]] || return 1; done
	[[ -x $1/$program && $("$1/$program" version 2>/dev/null) == "$version" ]]
}

# current says whether bin/ holds what the hash names.
current() { [[ -f $sum && $(<"$sum") == "$hash" ]] && works "$bin"; }

# install_outputs copies finished files into bin/. A running program keeps its file: the name moves to the new one.
install_outputs() {
	local output temp
	for output in "${outputs[@]}"; do
		mkdir -p "$(dirname "$bin/$output")"
		temp=$(mktemp "$bin/.$program.XXXXXX")
		cp --reflink=auto --preserve=mode "$1/$output" "$temp"
		mv -f "$temp" "$bin/$output"
	done
	link
	echo "$hash" >"$sum.new"
	mv -f "$sum.new" "$sum"
}

# progress says every now and then that the build goes on; on a terminal, in place.
progress() {
	local from=$SECONDS every=30 elapsed never
	[[ -t 2 ]] && every=1
	exec {never}<> <(:) # to wait on without a child, which would outlive this
	while true; do
		read -rt "$every" -u "$never" || true
		elapsed=$((SECONDS - from))
		if [[ -t 2 ]]; then
			printf '\r\033[K%s: building, %d:%02d' "$program" $((elapsed / 60)) $((elapsed % 60)) >&2
		else
			printf '%s: building, %d:%02d\n' "$program" $((elapsed / 60)) $((elapsed % 60)) >&2
		fi
	done
}

# build compiles into the directory that it is given.
build() {
	local watcher status=0 from=$SECONDS
	echo "$program: building $built; the first time takes about 6 minutes on two cores, later ones seconds" >&2
	progress &
	watcher=$!
	trap 'kill "$watcher" 2>/dev/null || true' EXIT
	compile "$1" || status=$?
	kill "$watcher" 2>/dev/null || true
	wait "$watcher" 2>/dev/null || true
	trap - EXIT
	[[ -t 2 ]] && printf '\r\033[K' >&2
	((status == 0)) || { rm -rf "$1"; exit "$status"; }
	works "$1" || { echo "$program: the built program does not run: $1/$program" >&2; exit 1; }
	echo "$program: built in $((SECONDS - from)) s" >&2
}

# prune removes all but the builds used last, and what crashed builds left.
prune() {
	find "$cache" -mindepth 1 -maxdepth 1 -name '.new.*' -mmin +120 -exec rm -rf {} + 2>/dev/null || true
	ls -1t "$cache" | tail -n "+$((kept + 1))" | while read -r old; do rm -rf "${cache:?}/$old"; done
}

build_upstream() {
	bin=$1
	sum=$bin/.$program.sum
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/atoll/$name
	hash=$(digest)
	mkdir -p "$bin"
	if current; then link; exit 0; fi
	mkdir -p "$cache"

	# One build at a time on this machine: a second would only make both slower, and then finds this one's files.
	exec 9>"$cache.lock"
	flock 9
	if current; then link; exit 0; fi
	if works "$cache/$hash"; then
		touch "$cache/$hash"
		install_outputs "$cache/$hash"
		echo "$program: taken from $cache/$hash" >&2
		exit 0
	fi
	local temp=$cache/.new.$hash
	rm -rf "$temp" "${cache:?}/$hash"
	mkdir -p "$temp"
	build "$temp"
	mv "$temp" "$cache/$hash"
	install_outputs "$cache/$hash"
	prune
}
