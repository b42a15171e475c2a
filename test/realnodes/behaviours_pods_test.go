//go:build realnodes

package realnodes

// podBehaviours are those of a pod alone: its start and end, its limits, its probes and its node.
var podBehaviours = []behaviour{
	{name: "a pod runs to its end", manifests: demoPod("p-ends", "Never", "", `args: [echo, done]`), steps: []step{
		{`get pod p-ends -o=jsonpath={.status.phase}`,
			`Succeeded`},
		{`logs p-ends -c main`,
			`done`},
	}},
	{name: "a pod whose container fails is Failed",
		manifests: demoPod("p-fails", "Never", "", `args: [exit, "3"]`),
		steps: []step{
			{`get pod p-fails -o=jsonpath={.status.phase}`,
				`Failed`},
			{`get pod p-fails -o=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}`,
				`3`},
		}},
	{name: "a fork bomb ends at the limit of its pod",
		manifests: demoPod("p-forks", "Never", "", `args: [fork]`),
		steps: []step{
			{`logs p-forks -c main`,
				`others is refused`},
		}},
	{name: "a container that fails is restarted on failure",
		manifests: demoPod("p-restarts", "OnFailure", "", `args: [exit, "1"]`),
		steps: []step{
			{`get pod p-restarts -o=jsonpath={.status.containerStatuses[0].lastState}`,
				`terminated`},
		}},
	{name: "a pod has the arguments of its spec",
		manifests: demoPod("p-args", "Never", "", `args: [echo, one two]`),
		steps: []step{
			{`logs p-args -c main`,
				`one two`},
		}},
	{name: "a pod's hostname is its name",
		manifests: demoPod("p-host", "Never", "", `args: [hostname]`),
		steps: []step{
			{`logs p-host -c main`,
				`p-host`},
		}},
	{name: "spec.hostname changes the hostname",
		manifests: demoPod("p-named", "Never", `hostname: other`, `args: [hostname]`),
		steps: []step{
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
	{name: "a container runs as the user of its security context",
		manifests: demoPod("p-user", "Never", "", `args: [id]
securityContext: {runAsUser: 1234, runAsGroup: 567}`), steps: []step{
			{`logs p-user -c main`,
				`1234`},
		}},
	{name: "a read-only root file system refuses writes",
		manifests: demoPod("p-ro", "Never", "", `args: [write, /f, x]
securityContext: {readOnlyRootFilesystem: true, runAsUser: 0}`), steps: []step{
			{`get pod p-ro -o=jsonpath={.status.phase}`,
				`Failed`},
		}},
	{name: "a readiness probe that succeeds makes a pod Ready",
		manifests: demoPod("p-ready", "Always", "",
			`readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}`),
		steps: []step{
			{`get pod p-ready -o=jsonpath=ready={.status.containerStatuses[0].ready}`,
				`ready=true`},
		}},
	{name: "a readiness probe that fails keeps a pod unready",
		manifests: demoPod("p-unready", "Always", "",
			`readinessProbe: {httpGet: {path: /none/none, port: 8080}, periodSeconds: 1}`),
		steps: []step{
			{`get pod p-unready -o=jsonpath={.status.phase}-{.status.containerStatuses[0].ready}`,
				`Running-false`},
		}},
	{name: "a liveness probe that fails restarts a container",
		manifests: demoPod("p-alive", "Always", "",
			`livenessProbe: {httpGet: {path: /none/none, port: 8080}, periodSeconds: 1, failureThreshold: 1}`),
		steps: []step{
			{`get pod p-alive -o=jsonpath={.status.containerStatuses[0].lastState}`,
				`terminated`},
		}},
	{name: "a startup probe precedes readiness",
		manifests: demoPod("p-startup", "Always", "",
			`startupProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}`),
		steps: []step{
			{`get pod p-startup -o=jsonpath=started={.status.containerStatuses[0].started}`,
				`started=true`},
		}},
	{name: "a memory limit is enforced", manifests: demoPod("p-oom", "Never", "", `args: [allocate, "200"]
resources: {limits: {memory: 64Mi}}`), steps: []step{
		{`get pod p-oom -o=jsonpath={.status.containerStatuses[0].state.terminated.reason}`,
			`OOMKilled`},
	}},
	{name: "requests decide the QoS class", manifests: demoPod("p-qos", "Never", "", `args: [sleep, 1s]
resources: {limits: {memory: 64Mi, cpu: 100m}}`), steps: []step{
		{`get pod p-qos -o=jsonpath={.status.qosClass}`,
			`Guaranteed`},
	}},
	{name: "a node selector without a node leaves a pod Pending",
		manifests: demoPod("p-none", "Never", `nodeSelector: {no: such}`, `args: [sleep, 1s]`),
		steps: []step{
			{`get pod p-none -o=jsonpath={.status.conditions[0].reason}`,
				`Unschedulable`},
		}},
	{name: "a pod runs on the node of its nodeName",
		manifests: demoPod("p-on", "Never", `nodeName: w-1`, `args: [env, WHERE]
env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]`), steps: []step{
			{`logs p-on -c main`,
				`w-1`},
		}},
	{name: "an active deadline ends a pod",
		manifests: demoPod("p-late", "Never", `activeDeadlineSeconds: 1`, `args: [sleep, 60s]`),
		steps: []step{
			{`get pod p-late -o=jsonpath={.status.reason}`,
				`DeadlineExceeded`},
		}},
}
