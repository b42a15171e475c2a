//go:build realnodes

package realnodes

// podBehaviours are those of a pod alone: its start and end, its limits, its probes and its node.
var podBehaviours = []behaviour{
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
}
