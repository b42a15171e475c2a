//go:build realnodes

package realnodes

// serviceBehaviours are those of connections to pods and kubelets, of Services, and of controllers that make pods.
var serviceBehaviours = []behaviour{
	{name: "exec runs a program in a container",
		manifests: demoPod("server", "Always", "",
			`readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}`),
		steps: []step{
			{`exec server -- /demo hostname`,
				`server`},
		}},
	{name: "exec passes the standard input", manifests: ``, steps: []step{
		{`exec -i server -- /demo copy`,
			`input of exec`},
	}},
	{name: "the API server's proxy reaches a pod", manifests: ``, steps: []step{
		{`get --raw /api/v1/namespaces/default/pods/server:8080/proxy/`,
			`server`},
	}},
	{name: "the API server's proxy reaches a kubelet", manifests: ``, steps: []step{
		{`get --raw /api/v1/nodes/w-0/proxy/healthz`,
			`ok`},
	}},
	{name: "a kubelet reports the use of resources", manifests: ``, steps: []step{
		{`get --raw /api/v1/nodes/w-0/proxy/metrics/resource`,
			`node_memory_working_set_bytes`},
	}},
	{name: "a Service has the pods of its selector", manifests: `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: server}, ports: [{name: web, port: 80, targetPort: 8080}]}
---
`, steps: []step{
		{`get endpointslices -l kubernetes.io/service-name=web -o=jsonpath={.items[0].endpoints[0].addresses[0]}`,
			`10.132.`},
	}},
	{name: "a pod reaches a Service by its address", manifests: `apiVersion: v1
kind: Service
metadata: {name: web1}
spec: {selector: {app: server}, clusterIP: 10.96.77.1, ports: [{name: web, port: 80, targetPort: 8080}]}
---
` + demoPod("p-svc", "OnFailure", "", `args: [fetch, http://10.96.77.1/]`), steps: []step{
		{`logs p-svc -c main`,
			`server`},
	}},
	{name: "a NodePort answers on each node", manifests: `apiVersion: v1
kind: Service
metadata: {name: web2}
spec: {selector: {app: server}, type: NodePort, ports: [{name: web, port: 80, targetPort: 8080, nodePort: 30123}]}
---
` + demoPod("p-nodeport", "OnFailure", "", `args: [fetch, "http://10.90.0.17:30123/"]`), steps: []step{
		{`logs p-nodeport -c main`,
			`server`},
	}},
	{name: "a pod has the variables of Services",
		manifests: demoPod("p-svcenv", "Never", "", `args: [env, KUBERNETES_SERVICE_PORT]`),
		steps: []step{
			{`logs p-svcenv -c main`,
				`443`},
		}},
	{name: "a Deployment has its replicas", manifests: `apiVersion: apps/v1
kind: Deployment
metadata: {name: d-1}
spec:
  selector: {matchLabels: {app: d-1}}
  replicas: 2
  template: {metadata: {labels: {app: d-1}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: main,
        image: "atoll.dev/demo:v1", imagePullPolicy: Never}]}}
`, steps: []step{
		{`get deployment d-1 -o=jsonpath=ready={.status.readyReplicas}`,
			`ready=2`},
	}},
	{name: "a ReplicaSet has its replicas", manifests: `apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: r-1}
spec:
  selector: {matchLabels: {app: r-1}}
  replicas: 2
  template: {metadata: {labels: {app: r-1}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: main,
        image: "atoll.dev/demo:v1", imagePullPolicy: Never}]}}
`, steps: []step{
		{`get replicaset r-1 -o=jsonpath=ready={.status.readyReplicas}`,
			`ready=2`},
	}},
	{name: "a DaemonSet has a pod on each node", manifests: `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ds-1}
spec:
  selector: {matchLabels: {app: ds-1}}
  
  template: {metadata: {labels: {app: ds-1}}, spec: {terminationGracePeriodSeconds: 1,
        containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never}]}}
`, steps: []step{
		{`get daemonset ds-1 -o=jsonpath=ready={.status.numberReady}`,
			`ready=2`},
	}},
	{name: "a StatefulSet's pods have ordinal names", manifests: `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: st-1}
spec:
  selector: {matchLabels: {app: st-1}}
  replicas: 2
  serviceName: st-1
  template: {metadata: {labels: {app: st-1}}, spec: {terminationGracePeriodSeconds: 1,
        containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never}]}}
`, steps: []step{
		{`get pod st-1-1 -o=jsonpath={.status.phase}`,
			`Running`},
	}},
	{name: "a Job runs to completion", manifests: `apiVersion: batch/v1
kind: Job
metadata: {name: j-1}
spec: {completions: 2, parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: main,
        image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [echo, job]}]}}}
`, steps: []step{
		{`get job j-1 -o=jsonpath=succeeded={.status.succeeded}`,
			`succeeded=2`},
	}},
	{name: "a Job that fails stops after its limit", manifests: `apiVersion: batch/v1
kind: Job
metadata: {name: j-2}
spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{name: main,
        image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [exit, "1"]}]}}}
`, steps: []step{
		{`get job j-2 -o=jsonpath={.status.conditions[*].type}`,
			`Failed`},
	}},
	{name: "a ResourceQuota counts pods", manifests: `apiVersion: v1
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {pods: "500"}}
`, steps: []step{
		{`get resourcequota q -o=jsonpath=hard={.status.hard.pods}`,
			`hard=500`},
	}},
}
