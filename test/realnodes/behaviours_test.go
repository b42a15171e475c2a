//go:build realnodes

package realnodes

// behaviour is one behaviour of Kubernetes.
type behaviour struct {
	name      string
	manifests string // applied before any step of any behaviour
	steps     []step
}

// step is a call of kubectl whose output must have a text at last.
type step struct{ args, want string }

var behaviours = []behaviour{
	{name: "a pod runs to its end", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-ends, labels: {app: p-ends}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [echo, done]
`, steps: []step{
		{`get pod p-ends -o=jsonpath={.status.phase}`,
			`Succeeded`},
		{`logs p-ends -c main`,
			`done`},
	}},
	{name: "a pod whose container fails is Failed", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-fails, labels: {app: p-fails}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [exit, "3"]
`, steps: []step{
		{`get pod p-fails -o=jsonpath={.status.phase}`,
			`Failed`},
		{`get pod p-fails -o=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}`,
			`3`},
	}},
	{name: "a fork bomb ends at the limit of its pod", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-forks, labels: {app: p-forks}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [fork]
`, steps: []step{
		{`logs p-forks -c main`,
			`others is refused`},
	}},
	{name: "a container that fails is restarted on failure", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-restarts, labels: {app: p-restarts}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: OnFailure
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [exit, "1"]
`, steps: []step{
		{`get pod p-restarts -o=jsonpath={.status.containerStatuses[0].lastState}`,
			`terminated`},
	}},
	{name: "a pod has the arguments of its spec", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-args, labels: {app: p-args}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [echo, one two]
`, steps: []step{
		{`logs p-args -c main`,
			`one two`},
	}},
	{name: "a pod's hostname is its name", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-host, labels: {app: p-host}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [hostname]
`, steps: []step{
		{`logs p-host -c main`,
			`p-host`},
	}},
	{name: "spec.hostname changes the hostname", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-named, labels: {app: p-named}}
spec:
  terminationGracePeriodSeconds: 1
  hostname: other
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [hostname]
`, steps: []step{
		{`logs p-named -c main`,
			`other`},
	}},
	{name: "a variable has its value", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-env, labels: {app: p-env}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, A]
    env: [{name: A, value: b}]
`, steps: []step{
		{`logs p-env -c main`,
			`b`},
	}},
	{name: "a variable expands another one", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-expand, labels: {app: p-expand}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, B]
    env: [{name: A, value: x}, {name: B, value: "$(A)y"}]
`, steps: []step{
		{`logs p-expand -c main`,
			`xy`},
	}},
	{name: "the downward API has the pod's name in a variable", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-down, labels: {app: p-down}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, WHERE]
    env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
`, steps: []step{
		{`logs p-down -c main`,
			`p-down`},
	}},
	{name: "the downward API has the pod's address", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-ip, labels: {app: p-ip}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, WHERE]
    env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
`, steps: []step{
		{`logs p-ip -c main`,
			`10.132.`},
	}},
	{name: "the downward API has the node's name", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-node, labels: {app: p-node}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, WHERE]
    env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
`, steps: []step{
		{`logs p-node -c main`,
			`w-`},
	}},
	{name: "the downward API has the memory limit", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-limit, labels: {app: p-limit}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, WHERE]
    resources: {limits: {memory: 64Mi}}
    env: [{name: WHERE, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]
`, steps: []step{
		{`logs p-limit -c main`,
			`67108864`},
	}},
	{name: "a downward API volume has the labels", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-downvol, labels: {app: p-downvol}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [cat, /d/labels]
    volumeMounts: [{name: d, mountPath: /d}]
`, steps: []step{
		{`logs p-downvol -c main`,
			`app="p-downvol"`},
	}},
	{name: "a ConfigMap is a variable", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-env}
data: {key: value1}
---
apiVersion: v1
kind: Pod
metadata: {name: p-cmenv, labels: {app: p-cmenv}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, A]
    env: [{name: A, valueFrom: {configMapKeyRef: {name: c-env, key: key}}}]
`, steps: []step{
		{`logs p-cmenv -c main`,
			`value1`},
	}},
	{name: "a ConfigMap is a volume", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-vol}
data: {key: value2}
---
apiVersion: v1
kind: Pod
metadata: {name: p-cmvol, labels: {app: p-cmvol}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: c, configMap: {name: c-vol}}]
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [cat, /c/key]
    volumeMounts: [{name: c, mountPath: /c}]
`, steps: []step{
		{`logs p-cmvol -c main`,
			`value2`},
	}},
	{name: "a ConfigMap's key is mounted at a path", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-path}
data: {key: value3}
---
apiVersion: v1
kind: Pod
metadata: {name: p-cmpath, labels: {app: p-cmpath}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: c, configMap: {name: c-path, items: [{key: key, path: a/b}]}}]
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [cat, /c/a/b]
    volumeMounts: [{name: c, mountPath: /c}]
`, steps: []step{
		{`logs p-cmpath -c main`,
			`value3`},
	}},
	{name: "an optional ConfigMap may be missing", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-cmopt, labels: {app: p-cmopt}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: c, configMap: {name: c-none, optional: true}}]
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [echo, started]
    volumeMounts: [{name: c, mountPath: /c}]
`, steps: []step{
		{`logs p-cmopt -c main`,
			`started`},
	}},
	{name: "all keys of a ConfigMap become variables", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-all}
data: {key: value4}
---
apiVersion: v1
kind: Pod
metadata: {name: p-cmall, labels: {app: p-cmall}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, key]
    envFrom: [{configMapRef: {name: c-all}}]
`, steps: []step{
		{`logs p-cmall -c main`,
			`value4`},
	}},
	{name: "a Secret is a variable", manifests: `apiVersion: v1
kind: Secret
metadata: {name: s-env}
stringData: {key: secret1}
---
apiVersion: v1
kind: Pod
metadata: {name: p-senv, labels: {app: p-senv}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, A]
    env: [{name: A, valueFrom: {secretKeyRef: {name: s-env, key: key}}}]
`, steps: []step{
		{`logs p-senv -c main`,
			`secret1`},
	}},
	{name: "a Secret is a volume", manifests: `apiVersion: v1
kind: Secret
metadata: {name: s-vol}
stringData: {key: secret2}
---
apiVersion: v1
kind: Pod
metadata: {name: p-svol, labels: {app: p-svol}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: s, secret: {secretName: s-vol}}]
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [cat, /s/key]
    volumeMounts: [{name: s, mountPath: /s}]
`, steps: []step{
		{`logs p-svol -c main`,
			`secret2`},
	}},
	{name: "a projected volume joins sources", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-proj}
data: {key: value5}
---
apiVersion: v1
kind: Pod
metadata: {name: p-proj, labels: {app: p-proj}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: p, projected: {sources: [{configMap: {name: c-proj}}, {downwardAPI: {items: [{path: name,
        fieldRef: {fieldPath: metadata.name}}]}}]}}]
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [cat, /p/key, /p/name]
    volumeMounts: [{name: p, mountPath: /p}]
`, steps: []step{
		{`logs p-proj -c main`,
			`value5`},
		{`logs p-proj -c main`,
			`p-proj`},
	}},
	{name: "a pod has a token of its service account", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-token, labels: {app: p-token}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [ls, /var/run/secrets/kubernetes.io/serviceaccount]
`, steps: []step{
		{`logs p-token -c main`,
			`token`},
	}},
	{name: "a pod may have no token", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-notoken, labels: {app: p-notoken}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  automountServiceAccountToken: false
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [ls, /]
`, steps: []step{
		{`get pod p-notoken -o=jsonpath={.status.phase}`,
			`Succeeded`},
	}},
	{name: "an emptyDir is shared by containers", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-empty}
spec:
  restartPolicy: Never
  securityContext: {fsGroup: 65532}
  volumes: [{name: e, emptyDir: {}}]
  initContainers: [{name: first, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [write, /e/f,
        shared], volumeMounts: [{name: e, mountPath: /e}]}]
  containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [cat, /e/f],
        volumeMounts: [{name: e, mountPath: /e}]}]
`, steps: []step{
		{`logs p-empty -c main`,
			`shared`},
	}},
	{name: "init containers run before the others", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-init}
spec:
  restartPolicy: Never
  initContainers:
  - {name: one, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [echo, first]}
  - {name: two, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [echo, second]}
  containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [echo, third]}]
`, steps: []step{
		{`logs p-init -c one`,
			`first`},
		{`logs p-init -c two`,
			`second`},
		{`logs p-init -c main`,
			`third`},
	}},
	{name: "a failing init container keeps the others from starting", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-initfail}
spec:
  restartPolicy: Never
  initContainers: [{name: one, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [exit, "1"]}]
  containers: [{name: main, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [echo, third]}]
`, steps: []step{
		{`get pod p-initfail -o=jsonpath={.status.phase}`,
			`Failed`},
		{`get pod p-initfail -o=jsonpath={.status.containerStatuses[0].state.waiting.reason}`,
			`PodInitializing`},
	}},
	{name: "a container runs as the user of its security context", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-user, labels: {app: p-user}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [id]
    securityContext: {runAsUser: 1234, runAsGroup: 567}
`, steps: []step{
		{`logs p-user -c main`,
			`1234`},
	}},
	{name: "a read-only root file system refuses writes", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-ro, labels: {app: p-ro}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [write, /f, x]
    securityContext: {readOnlyRootFilesystem: true, runAsUser: 0}
`, steps: []step{
		{`get pod p-ro -o=jsonpath={.status.phase}`,
			`Failed`},
	}},
	{name: "a readiness probe that succeeds makes a pod Ready", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-ready, labels: {app: p-ready}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`, steps: []step{
		{`get pod p-ready -o=jsonpath=ready={.status.containerStatuses[0].ready}`,
			`ready=true`},
	}},
	{name: "a readiness probe that fails keeps a pod unready", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-unready, labels: {app: p-unready}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    readinessProbe: {httpGet: {path: /none/none, port: 8080}, periodSeconds: 1}
`, steps: []step{
		{`get pod p-unready -o=jsonpath={.status.phase}-{.status.containerStatuses[0].ready}`,
			`Running-false`},
	}},
	{name: "a liveness probe that fails restarts a container", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-alive, labels: {app: p-alive}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    livenessProbe: {httpGet: {path: /none/none, port: 8080}, periodSeconds: 1, failureThreshold: 1}
`, steps: []step{
		{`get pod p-alive -o=jsonpath={.status.containerStatuses[0].lastState}`,
			`terminated`},
	}},
	{name: "a startup probe precedes readiness", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-startup, labels: {app: p-startup}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    startupProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`, steps: []step{
		{`get pod p-startup -o=jsonpath=started={.status.containerStatuses[0].started}`,
			`started=true`},
	}},
	{name: "a memory limit is enforced", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-oom, labels: {app: p-oom}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [allocate, "200"]
    resources: {limits: {memory: 64Mi}}
`, steps: []step{
		{`get pod p-oom -o=jsonpath={.status.containerStatuses[0].state.terminated.reason}`,
			`OOMKilled`},
	}},
	{name: "requests decide the QoS class", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-qos, labels: {app: p-qos}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [sleep, 1s]
    resources: {limits: {memory: 64Mi, cpu: 100m}}
`, steps: []step{
		{`get pod p-qos -o=jsonpath={.status.qosClass}`,
			`Guaranteed`},
	}},
	{name: "a node selector without a node leaves a pod Pending", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-none, labels: {app: p-none}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {no: such}
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [sleep, 1s]
`, steps: []step{
		{`get pod p-none -o=jsonpath={.status.conditions[0].reason}`,
			`Unschedulable`},
	}},
	{name: "a pod runs on the node of its nodeName", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-on, labels: {app: p-on}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: w-1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, WHERE]
    env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
`, steps: []step{
		{`logs p-on -c main`,
			`w-1`},
	}},
	{name: "an active deadline ends a pod", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-late, labels: {app: p-late}}
spec:
  terminationGracePeriodSeconds: 1
  activeDeadlineSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [sleep, 60s]
`, steps: []step{
		{`get pod p-late -o=jsonpath={.status.reason}`,
			`DeadlineExceeded`},
	}},
	{name: "exec runs a program in a container", manifests: `apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`, steps: []step{
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
apiVersion: v1
kind: Pod
metadata: {name: p-svc, labels: {app: p-svc}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: OnFailure
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [fetch, http://10.96.77.1/]
`, steps: []step{
		{`logs p-svc -c main`,
			`server`},
	}},
	{name: "a NodePort answers on each node", manifests: `apiVersion: v1
kind: Service
metadata: {name: web2}
spec: {selector: {app: server}, type: NodePort, ports: [{name: web, port: 80, targetPort: 8080, nodePort: 30123}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p-nodeport, labels: {app: p-nodeport}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: OnFailure
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [fetch, "http://10.90.0.17:30123/"]
`, steps: []step{
		{`logs p-nodeport -c main`,
			`server`},
	}},
	{name: "a pod has the variables of Services", manifests: `apiVersion: v1
kind: Pod
metadata: {name: p-svcenv, labels: {app: p-svcenv}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    args: [env, KUBERNETES_SERVICE_PORT]
`, steps: []step{
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
