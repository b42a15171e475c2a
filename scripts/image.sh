#!/usr/bin/env bash
# Builds the container images atoll and atoll-hosting as OCI layouts below bin/image, without a container engine.
#
#   VERSION=0.1.0 ARCHS="amd64 arm64" scripts/image.sh
#
# VERSION is the appVersion of the charts by default, so that charts and images agree. ARCHS is this machine's
# architecture by default: another one compiles everything once more. atoll-hosting is for this machine's architecture
# only, because kube/build.sh runs what it builds. The same commit, Go version and SOURCE_DATE_EPOCH (default 0) give
# the same digests.
set -euo pipefail
cd "$(dirname "$0")/.."

go=${GO:-go}
machine=$("$go" env GOHOSTARCH)
archs=${ARCHS:-$machine}
version=${VERSION:-$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' deploy/charts/regional-cluster/atoll/Chart.yaml)}
revision=$(git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null || true)
programs=bin/static
export CGO_ENABLED=0

rm -rf "$programs"
for arch in $archs; do
	mkdir -p "$programs/linux-$arch"
	GOOS=linux GOARCH=$arch GOAMD64=v1 "$go" build -trimpath -buildvcs=false \
		-ldflags "-s -w -X atoll.dev/cli/terminal.Version=$version" -o "$programs/linux-$arch/atoll" ./cmd/atoll
done
if [[ " $archs " == *" $machine "* ]]; then
	printed=$("$programs/linux-$machine/atoll" --version)
	[[ $printed == "atoll version $version" ]] || { echo "image: atoll --version prints: $printed" >&2; exit 1; }
	kube/build.sh
	cp --reflink=auto bin/atoll-kube "$programs/linux-$machine/atoll-kube"
fi
"$go" build -C deploy/image -trimpath -buildvcs=false -o ../../bin/static/image .
bin/static/image -programs "$programs" -out bin/image -version "$version" -revision "$revision"
if [[ $archs == "$machine" ]]; then # the test reads the layouts back, and runs the program that they have
	ATOLL_IMAGE=$PWD/bin/image ATOLL_IMAGE_VERSION=$version "$go" test -C deploy/image -tags realimage -count=1 -run Real .
fi
