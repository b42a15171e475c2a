#!/usr/bin/env bash
# Builds bin/atoll-kube and its link bin/kubectl, when they are not what this source makes already.
#
#   kube/build.sh
#
# What decides is one hash, of the Go files, go.mod, go.sum, the Go version and the flags. bin/.atoll-kube.sum keeps
# that of the binary in bin/; finished binaries are also kept by hash in ${XDG_CACHE_HOME:-~/.cache}/atoll/kube, for
# other checkouts on this machine. The build is reproducible: no paths, no dates, no cgo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

version=v1.36.3
kept=3 # binaries in the cache
go=${GO:-go}
bin=$(cd .. && pwd)/bin
target=$bin/atoll-kube
sum=$bin/.atoll-kube.sum
cache=${XDG_CACHE_HOME:-$HOME/.cache}/atoll/kube

export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly GOAMD64=v1
stamp=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	stamp+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=36"
	stamp+=" -X $package.gitCommit=unknown -X $package.gitTreeState=clean"
	stamp+=" -X $package.buildDate=2026-07-22T18:07:38Z" # of the release, so that a build says the same tomorrow
done
flags=(-trimpath -buildvcs=false -ldflags "-s -w$stamp")

digest() {
	{
		# The test directory's programs are not part of the binary.
		find . -name '*.go' ! -name '*_test.go' ! -path './test/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
		sha256sum go.mod go.sum
		"$go" version
		"$go" env GOOS GOARCH GOEXPERIMENT
		printf '%s\n' "${flags[@]}"
	} | sha256sum | cut -c1-32
}

works() { [[ -x $1 && $("$1" version 2>/dev/null) == "$version" ]]; }

# current says whether bin/ holds what the hash names.
current() { [[ -f $sum && $(<"$sum") == "$hash" ]] && works "$target"; }

# install copies a finished binary into bin/. A running one keeps its file: the name moves to the new one.
install_binary() {
	local temp
	temp=$(mktemp "$bin/.atoll-kube.XXXXXX")
	cp --reflink=auto "$1" "$temp"
	chmod 0755 "$temp"
	mv -f "$temp" "$target"
	link
	echo "$hash" >"$sum.new"
	mv -f "$sum.new" "$sum"
}

link() {
	[[ $(readlink "$bin/kubectl" 2>/dev/null) == atoll-kube ]] && return
	ln -s atoll-kube "$bin/.kubectl.$$"
	mv -fT "$bin/.kubectl.$$" "$bin/kubectl"
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
			printf '\r\033[Katoll-kube: building, %d:%02d' $((elapsed / 60)) $((elapsed % 60)) >&2
		else
			printf 'atoll-kube: building, %d:%02d\n' $((elapsed / 60)) $((elapsed % 60)) >&2
		fi
	done
}

# build compiles into the file that it is given.
build() {
	local watcher status=0 from=$SECONDS
	echo "atoll-kube: building Kubernetes $version; the first time takes about 6 minutes on two cores, later ones seconds" >&2
	progress &
	watcher=$!
	trap 'kill "$watcher" 2>/dev/null || true' EXIT
	"$go" build "${flags[@]}" -o "$1" . || status=$?
	kill "$watcher" 2>/dev/null || true
	wait "$watcher" 2>/dev/null || true
	trap - EXIT
	[[ -t 2 ]] && printf '\r\033[K' >&2
	((status == 0)) || { rm -f "$1"; exit "$status"; }
	works "$1" || { echo "atoll-kube: the built binary does not run: $1" >&2; exit 1; }
	echo "atoll-kube: built in $((SECONDS - from)) s" >&2
}

# prune removes all but the binaries used last, and what crashed builds left.
prune() {
	find "$cache" -mindepth 1 -maxdepth 1 -name '.new.*' -mmin +120 -exec rm -rf {} + 2>/dev/null || true
	ls -1t "$cache" | tail -n "+$((kept + 1))" | while read -r old; do rm -rf "${cache:?}/$old"; done
}

hash=$(digest)
mkdir -p "$bin"
if current; then link; exit 0; fi
mkdir -p "$cache"

# One build at a time on this machine: a second would only make both slower, and then finds this one's binary.
exec 9>"$cache.lock"
flock 9
if current; then link; exit 0; fi
if works "$cache/$hash/atoll-kube"; then
	touch "$cache/$hash"
	install_binary "$cache/$hash/atoll-kube"
	echo "atoll-kube: taken from $cache/$hash" >&2
	exit 0
fi
temp=$cache/.new.$hash
rm -rf "$temp" "${cache:?}/$hash"
mkdir -p "$temp"
build "$temp/atoll-kube"
mv "$temp" "$cache/$hash"
install_binary "$cache/$hash/atoll-kube"
prune
