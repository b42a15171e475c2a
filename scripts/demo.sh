#!/usr/bin/env bash
# A region on this machine, from nothing to a work applied in its management
# cluster. It shows each command that it runs, for you to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
	printf '$ %s\n' "$*"
	"$@"
}
[[ -t 1 ]] || say() { printf '\n%s\n' "$*"; }

scripts/ensure.sh postgres curl
say "Build (the first time takes some minutes: upstream Kubernetes is compiled)"
make --no-print-directory build
export PATH=$PWD/bin:$PATH

say "A region: database, CA, broker, Maestro, API, a management cluster and its agent"
run atoll up --detach
eval "$(atoll env)"

say "A signed request, by a client that is not ours"
printf '$ curl --aws-sigv4 "aws:amz:$AWS_REGION:execute-api" ... $ATOLL_ENDPOINT/prod/api/v0/management_clusters\n'
curl -sS --fail-with-body --cacert "$ATOLL_CA" --aws-sigv4 "aws:amz:$AWS_REGION:execute-api" \
	--config <(printf 'user = "%s:%s"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY") \
	"$ATOLL_ENDPOINT/prod/api/v0/management_clusters"
echo

say "A ManifestWork, posted to the API, applied in the management cluster"
applied=$(mktemp) kubeconfig=$(mktemp)
trap 'rm -f "$applied" "$kubeconfig"' EXIT
run atoll work apply -f examples/hello.yaml --cluster management-01 --wait | tee "$applied"
id=$(sed -n 's/^work hello .*: id \([^,]*\),.*/\1/p' "$applied")

say "How long each stage took"
run atoll work why "$id"

say "What the management cluster holds now"
atoll mc kubeconfig management-01 >"$kubeconfig"
printf '$ kubectl get configmap hello -o yaml\n'
kubectl --kubeconfig "$kubeconfig" get configmap hello -o yaml

cat <<TXT

The region keeps running. To try next (after: export PATH=\$PWD/bin:\$PATH):
  atoll status                              its processes and endpoints
  atoll work list                           works and their conditions
  atoll work get $id -o yaml
  atoll clm create -f examples/cluster.yaml --wait    a cluster, by the lifecycle manager
  atoll up --management-clusters 2          one more management cluster
  eval "\$(atoll env)"                       then curl, awscurl or an AWS SDK
  atoll work delete $id     and the ConfigMap goes
  atoll down                                stops it; --purge deletes its data
TXT
