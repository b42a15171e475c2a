//go:build realnodes

package realnodes

// configBehaviours are those of variables and volumes: from the pod itself, ConfigMaps, Secrets and tokens.
var configBehaviours = []behaviour{
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
}
