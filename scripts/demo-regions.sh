#!/usr/bin/env bash
# Regions from Git, on this machine: two regions in two sectors from one repository, each with a watch that follows it,
# and a third region that a commit adds. Then the first two stop, and the third goes on. It shows each command that it
# runs. Everything lies in a temporary directory; nothing is left, also when it fails or is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[[ -t 1 ]] || say() { printf '\n%s\n' "$*"; }
run() {
	printf '$ %s\n' "$*"
	"$@"
}

scripts/ensure.sh postgres
say "Build (the first time takes some minutes: upstream Kubernetes is compiled)"
make --no-print-directory build
export PATH=$PWD/bin:$PATH
for variable in $(compgen -v ATOLL_); do # such as those of another region, from `atoll env`
	[[ $variable == ATOLL_KUBE_BIN ]] || unset "$variable"
done
begun=$SECONDS

dir=$(mktemp -d)
declare -A watch lines # process and output of the watch of each region
clean_up() {
	local status=$? region
	trap '' INT TERM # once is enough
	for region in "${!watch[@]}"; do
		kill "${watch[$region]}" 2>/dev/null || true
	done
	for region in "${!watch[@]}"; do
		cat <&"${lines[$region]}" >/dev/null # until the watch has ended
		if [[ -e $dir/$region/region.json ]]; then
			atoll down --purge --home "$dir/$region" >/dev/null || status=1
		fi
	done
	rm -rf "$dir"
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# add_version adds programs of a version: those of this tree, built with its number.
add_version() {
	mkdir -p "$dir/programs/$1"
	run go build -trimpath -ldflags "-X atoll.dev/cli/terminal.Version=$1" -o "$dir/programs/$1/atoll" ./cmd/atoll
	ln -s "$PWD/bin/atoll-kube" "$dir/programs/$1/atoll-kube"
}

# follow starts the watch of a region.
follow() {
	printf '$ atoll region watch %s --repo platform --home %s --programs programs &\n' "$1" "$1"
	exec {output}< <(exec atoll region watch "$1" --repo "$dir/platform" --home "$dir/$1" --programs "$dir/programs" 2>&1)
	watch[$1]=$! lines[$1]=$output
}

# await shows the lines of a watch until one has the text.
await() {
	local line
	while IFS= read -r line <&"${lines[$1]}"; do
		printf '[%s] %s\n' "$1" "$line"
		[[ $line != *"  $2  "* ]] || return 0
	done
	echo "the watch of $1 has ended" >&2
	return 1
}

commit() {
	printf '$ atoll config render | tail -1 && git add . && git commit -m "%s"\n' "$1"
	(cd "$dir/platform" && atoll config render | tail -1 && git add . &&
		git -c user.name=demo -c user.email=demo@localhost commit --quiet -m "$1")
}

first=us-east-2 second=ap-southeast-2 third=eu-west-1

say "A repository with the configuration of all regions; $first is in the sector canary, $second in main"
git init --quiet -b main "$dir/platform"
cp -r examples/config "$dir/platform/config"
commit "All regions"

say "The programs of the versions that the repository names: 1.5.0 of the canary, and 1.4.2"
add_version 1.4.2
add_version 1.5.0

say "Each region has a watch, which brings it up: with a database, a CA, an API and ports of its own"
follow $first
await $first applied
follow $second
await $second applied

say "A third watch waits: no commit declares its region"
follow $third
await $third undeclared

say "A commit adds it"
tee "$dir/platform/config/production/regions/$third.yaml" <<YAML
sector: main
aws: {accountId: "100000000009"}
managementClusters:
  mc01:
    aws: {accountId: "200000000009"}
YAML
commit "Add $third"
await $third applied
for region in $first $second $third; do
	run atoll region status $region --from "$dir/platform/deploy" --home "$dir/$region"
done

say "A mistake in a commit: each watch refuses it, with file and line, and goes on"
printf 'sektor: main\n' >>"$dir/platform/config/production/regions/$third.yaml"
(cd "$dir/platform" && git -c user.name=demo -c user.email=demo@localhost commit --quiet -a -m "A mistake")
await $third refused
IFS= read -r line <&"${lines[$third]}" && printf '[%s] %s\n' "$third" "$line"

say "The first two regions stop; the third goes on"
for region in $first $second; do
	kill "${watch[$region]}"
	cat <&"${lines[$region]}" >/dev/null
	printf '$ atoll down --home %s\n' "$region"
	atoll down --home "$dir/$region" | tail -1
done
run atoll --home "$dir/$third" cluster create shop --wait --timeout 3m
run atoll --home "$dir/$third" cluster list

say "All that took $((SECONDS - begun)) s. The regions and the repository are removed now."
