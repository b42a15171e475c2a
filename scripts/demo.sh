#!/usr/bin/env bash
# A region on this machine, from nothing to a customer's cluster with a
# deployment in it. It shows each command that it runs, for you to repeat. It
# may be run again: what is there stays, and one more cluster is made.
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

# Real nodes run pods. They need root, cgroups, overlayfs and runc, and programs that take minutes to compile once.
nodes=simulated image=registry.k8s.io/pause:3.10
if [[ ${ATOLL_DEMO_NODES:-} == simulated ]]; then
	why='ATOLL_DEMO_NODES is simulated'
elif ((EUID != 0)); then
	why='real nodes need root'
elif ! why=$(scripts/ensure.sh runc nft mkfs.ext4 2>&1) ||
	! { echo 'Programs of real nodes (the first time takes some minutes) ...' && why=$(make --no-print-directory nodes 2>&1); }; then
	why=$(tail -1 <<<"$why")
elif ! why=$(atoll node preflight 2>&1); then
	:
elif atoll status >/dev/null 2>&1 && ! grep -q '"nodes": "local"' "$(atoll status -o json |
	sed -n 's/^  "home": "\(.*\)",$/\1/p')/region.json"; then
	why='the region that runs here was started without them: atoll down, then once more'
else
	nodes=local image=atoll.dev/demo:v1
fi
say "Nodes of this demonstration: $nodes"
[[ $nodes == local ]] || printf '%s\n' "$why"
begun=$SECONDS

say "A region: database, CA, broker, lifecycle manager, API; a management cluster that hosts planes, and its agent"
if [[ $nodes == local ]]; then run atoll up --detach --nodes local; else run atoll up --detach; fi
eval "$(atoll env)"
# A region that ran before may have real nodes although none were chosen now. They pull no images.
if [[ $nodes == simulated ]] && grep -qs '"nodes": "local"' "$(atoll status -o json |
	sed -n 's/^  "home": "\(.*\)",$/\1/p')/region.json"; then
	say "The region that runs here makes real nodes"
	nodes=local image=atoll.dev/demo:v1
fi

say "A signed request, by a client that is not ours"
printf '$ curl --aws-sigv4 "aws:amz:$AWS_REGION:execute-api" ... $ATOLL_ENDPOINT/prod/api/v0/management_clusters\n'
curl -sS --fail-with-body --cacert "$ATOLL_CA" --aws-sigv4 "aws:amz:$AWS_REGION:execute-api" \
	--config <(printf 'user = "%s:%s"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY") \
	"$ATOLL_ENDPOINT/prod/api/v0/management_clusters"
echo

say "A customer asks for a cluster with two nodes"
taken=$(atoll cluster list -o name)
name=demo
for ((n = 2; ; n++)); do
	grep -qx -e "$name" <<<"$taken" || break
	name=demo-$n
done
run atoll cluster create "$name" --node-pool name=workers,replicas=2,instance-type=m6a.xlarge --wait --timeout 3m

say "A kubeconfig: the key is made here, the cluster's CA signs for it where it lives"
kubeconfig=bin/$name.kubeconfig
run atoll cluster kubeconfig "$name" --out "$kubeconfig"
run kubectl --kubeconfig "$kubeconfig" get nodes -L node.kubernetes.io/instance-type,atoll.dev/simulated,atoll.dev/node-provider

if [[ $nodes == local ]]; then
	say "A deployment in the customer's cluster: its nodes run the containers"
else
	say "A deployment in the customer's cluster (its nodes are simulated: no container runs)"
fi
run kubectl --kubeconfig "$kubeconfig" create deployment hello --image="$image" --replicas=3
run kubectl --kubeconfig "$kubeconfig" rollout status deployment/hello --timeout=60s
run kubectl --kubeconfig "$kubeconfig" get pods -o wide
if [[ $nodes == local ]]; then
	run kubectl --kubeconfig "$kubeconfig" logs deployment/hello
	run kubectl --kubeconfig "$kubeconfig" exec deployment/hello -- /demo hostname
	run kubectl --kubeconfig "$kubeconfig" expose deployment hello --port 80 --target-port 8080
	run kubectl --kubeconfig "$kubeconfig" -n kube-system rollout status deployment/coredns --timeout=60s
	# A node refuses connections to a new Service until its kube-proxy has the Service's endpoints.
	fetch=(kubectl --kubeconfig "$kubeconfig" exec deployment/hello -- /demo fetch http://hello/)
	printf '$ %s\n' "${fetch[*]}"
	for ((tries = 60; tries > 0; tries--)); do
		answer=$("${fetch[@]}" 2>&1) && break
		sleep 0.5
	done
	printf '%s\n' "$answer"
	((tries > 0))
fi

say "Where its control plane lives: on a management cluster, which the customer does not see"
run atoll cluster get "$name"
id=$(atoll cluster get "$name" -o json | sed -n 's/^  "id": "\(.*\)",$/\1/p')
mc=$(atoll cluster get "$name" -o json | sed -n 's/^ *"managementCluster": "\(.*\)".*$/\1/p' | head -1)
admin=$(mktemp)
trap 'rm -f "$admin"' EXIT
atoll mc kubeconfig "$mc" >"$admin"
printf '$ kubectl -n clusters-%s get hostedclusters,nodepools     # on %s\n' "$id" "$mc"
kubectl --kubeconfig "$admin" -n "clusters-$id" get hostedclusters,nodepools
for process in /proc/[0-9]*; do
	if tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q "atoll-kube.*clusters-$id"; then
		printf 'process %s: %s MB resident: etcd, API server, controller manager and scheduler in one\n' \
			"${process#/proc/}" "$(awk '/^VmRSS/ {print int($2 / 1000)}' "$process/status")"
	fi
done

say "Below it: a ManifestWork, posted to the API, applied in the management cluster"
run atoll work apply -f examples/hello.yaml --cluster "$mc" --wait

cat <<TXT

All that took $((SECONDS - begun)) s. The region keeps running, and $name in it. To try next (after: export PATH=\$PWD/bin:\$PATH):
  kubectl --kubeconfig $kubeconfig get all -A
  atoll nodepool scale workers 5 --cluster $name --wait
  atoll cluster hibernate $name --wait       its process ends; the next kubectl wakes it
  atoll cluster list -o wide; atoll cluster events $name; atoll cluster credentials list $name
  atoll clm why clusters $name               what the region's controllers say of it
  atoll status                              processes and endpoints; atoll logs $mc-hosting
  atoll up --management-clusters 2          one more management cluster
  eval "\$(atoll env)"                       then curl, awscurl or an AWS SDK
  atoll cluster delete $name --wait
  atoll down                                stops it; --purge deletes its data
TXT
