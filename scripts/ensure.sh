#!/usr/bin/env bash
# Makes sure that the named programs are on this machine; with apt-get where
# that may be used, else it says what to install and stops.
#
#   scripts/ensure.sh postgres [gcc] [curl] [mosquitto] [prometheus] [runc] [nft] [mkfs.ext4] [az]
set -euo pipefail

have_postgres() {
	local dir
	for dir in $(IFS=:; echo $PATH) /usr/lib/postgresql/*/bin; do
		[[ -x $dir/postgres && -x $dir/initdb ]] || continue
		local version
		version=$("$dir/postgres" --version | grep -oE '[0-9]+' | head -1)
		((version >= 15)) && return 0
	done
	return 1
}

have() {
	case $1 in
	postgres) have_postgres ;;
	mosquitto | runc | nft | mkfs.ext4) [[ -n $(PATH=$PATH:/usr/local/sbin:/usr/sbin command -v "$1") ]] ;; # not on everybody's PATH
	*) command -v "$1" >/dev/null ;;
	esac
}

package() {
	case $1 in
	postgres) echo postgresql ;;
	gcc) echo gcc libc6-dev ;;
	nft) echo nftables ;;
	mkfs.ext4) echo e2fsprogs ;;
	az) echo azure-cli ;;
	*) echo "$1" ;;
	esac
}

missing=() packages=()
for program in "$@"; do
	have "$program" && continue
	missing+=("$program")
	read -ra names <<<"$(package "$program")"
	packages+=("${names[@]}")
done
((${#missing[@]} == 0)) && exit 0

root=()
if ((EUID != 0)); then
	if sudo -n true 2>/dev/null; then
		root=(sudo -n)
	else
		root=(none)
	fi
fi
if ! command -v apt-get >/dev/null || [[ ${root[0]:-} == none ]]; then
	cat >&2 <<TXT
missing: ${missing[*]}
Install them and run this again. On Debian and Ubuntu, as root:
    mkdir -p /etc/postgresql-common
    echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf   # no server of the package's own
    apt-get install --no-install-recommends ${packages[*]}
    systemctl disable --now mosquitto prometheus   # if they were among them: the tests start their own
Elsewhere: PostgreSQL's server binaries (postgres, initdb), version 15 or newer, on PATH.
TXT
	exit 1
fi

echo "installing ${packages[*]}"
if [[ " ${missing[*]} " == *" postgres "* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
	# The region runs a server of its own; the package is not to start one.
	"${root[@]}" mkdir -p /etc/postgresql-common
	echo 'create_main_cluster = false' | "${root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
# A package may start and enable a service of its own. policy-rc.d forbids the
# first (apt would try it in a container without systemd, too), the lines at the
# end undo the second.
cleanup=()
log=$(mktemp)
trap 'rm -f "$log"; ((${#cleanup[@]} == 0)) || "${cleanup[@]}"' EXIT
policy=/usr/sbin/policy-rc.d
servers=() # whose packages start a service
for program in "${missing[@]}"; do
	[[ $program == mosquitto || $program == prometheus ]] && servers+=("$program")
done
if ((${#servers[@]} > 0)) && [[ ! -e $policy ]]; then
	cleanup=("${root[@]}" rm -f "$policy")
	printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
	"${root[@]}" chmod 755 "$policy"
fi
install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=120 -yq install --no-install-recommends "${packages[@]}")
if ! "${install[@]}" >"$log" 2>&1; then
	# A fresh machine has no package lists yet.
	if ! { "${root[@]}" apt-get -q update && "${install[@]}"; } >"$log" 2>&1; then
		cat "$log" >&2
		echo "could not install ${packages[*]}" >&2
		exit 1
	fi
fi
for server in "${servers[@]}"; do
	! command -v systemctl >/dev/null || "${root[@]}" systemctl -q disable "$server.service" 2>/dev/null || true
	! command -v update-rc.d >/dev/null || "${root[@]}" update-rc.d "$server" disable 2>/dev/null || true
done
