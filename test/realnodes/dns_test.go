//go:build realnodes

package realnodes

// dnsBehaviours are those of DNS within a cluster. They use objects of other behaviours.
var dnsBehaviours = []behaviour{
	{name: "DNS has the Service of the API server", steps: []step{
		{`exec server -- /demo resolve kubernetes.default.svc.cluster.local`,
			`10.96.0.1`},
		{`exec server -- /demo resolve kubernetes.default`,
			`10.96.0.1`},
	}},
	{name: "DNS has the address of a Service", steps: []step{
		{`exec server -- /demo resolve web1`,
			`10.96.77.1`},
		{`exec server -- /demo resolve web1.default.svc`,
			`10.96.77.1`},
		{`exec server -- /demo fetch http://web1/`,
			`server`},
	}},
	{name: "DNS has the named ports of a Service", steps: []step{
		{`exec server -- /demo srv _web._tcp.web1.default.svc.cluster.local`,
			`80 web1.default.svc.cluster.local.`},
	}},
	{name: "DNS has the name of a Service's address", steps: []step{
		{`exec server -- /demo ptr 10.96.77.1`,
			`web1.default.svc.cluster.local.`},
	}},
	{name: "DNS has the pods of a headless Service", manifests: `apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: server}, ports: [{name: web, port: 8080}]}
`, steps: []step{
		{`exec server -- /demo resolve headless.default.svc.cluster.local`,
			`10.132.`},
		{`exec server -- /demo fetch http://headless:8080/`,
			`server`},
		{`exec server -- /demo srv _web._tcp.headless.default.svc.cluster.local`,
			`8080 10-132-`},
	}},
	{name: "DNS has a name for each pod of a StatefulSet", manifests: `apiVersion: v1
kind: Service
metadata: {name: st-1}
spec: {clusterIP: None, selector: {app: st-1}, ports: [{name: web, port: 8080}]}
`, steps: []step{
		{`exec server -- /demo fetch http://st-1-0.st-1:8080/`,
			`st-1-0`},
		{`exec server -- /demo fetch http://st-1-1.st-1.default.svc.cluster.local:8080/`,
			`st-1-1`},
	}},
	{name: "DNS has a pod's hostname in its subdomain", manifests: `apiVersion: v1
kind: Service
metadata: {name: sub}
spec: {clusterIP: None, selector: {app: p-sub}}
---
apiVersion: v1
kind: Pod
metadata: {name: p-sub, labels: {app: p-sub}}
spec:
  terminationGracePeriodSeconds: 1
  hostname: named
  subdomain: sub
  containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never}]
`, steps: []step{
		{`exec server -- /demo fetch http://named.sub.default.svc.cluster.local:8080/`,
			`named`},
		{`exec p-sub -- /demo cat /etc/hosts`,
			`named.sub.default.svc.cluster.local`},
	}},
	{name: "DNS has the name of an ExternalName Service", manifests: `apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: somewhere.example.com}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: web1.default.svc.cluster.local}
`, steps: []step{
		{`exec server -- /demo cname elsewhere.default.svc.cluster.local`,
			`somewhere.example.com.`},
		{`exec server -- /demo fetch http://alias/`,
			`server`},
	}},
	{name: "a pod's own DNS settings replace those of the cluster", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-dns, labels: {app: p-dns}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  dnsPolicy: None
  dnsConfig: {nameservers: [10.96.0.10], searches: [elsewhere.example], options: [{name: ndots, value: "2"}]}
  containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [cat, /etc/resolv.conf]}]
`, steps: []step{
		{`logs p-dns -c main`,
			`search elsewhere.example`},
		{`logs p-dns -c main`,
			`ndots:2`},
	}},
}
