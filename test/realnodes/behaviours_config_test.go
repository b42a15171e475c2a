//go:build realnodes

package realnodes

// configBehaviours are those of variables and volumes: from the pod itself, ConfigMaps, Secrets and tokens.
var configBehaviours = []behaviour{
	{name: "a variable has its value", manifests: demoPod("p-env", "Never", "", `args: [env, A]
env: [{name: A, value: b}]`), steps: []step{
		{`logs p-env -c main`,
			`b`},
	}},
	{name: "a variable expands another one", manifests: demoPod("p-expand", "Never", "", `args: [env, B]
env: [{name: A, value: x}, {name: B, value: "$(A)y"}]`), steps: []step{
		{`logs p-expand -c main`,
			`xy`},
	}},
	{name: "the downward API has the pod's name in a variable",
		manifests: demoPod("p-down", "Never", "", `args: [env, WHERE]
env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`), steps: []step{
			{`logs p-down -c main`,
				`p-down`},
		}},
	{name: "the downward API has the pod's address", manifests: demoPod("p-ip", "Never", "", `args: [env, WHERE]
env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]`), steps: []step{
		{`logs p-ip -c main`,
			`10.132.`},
	}},
	{name: "the downward API has the node's name", manifests: demoPod("p-node", "Never", "", `args: [env, WHERE]
env: [{name: WHERE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]`), steps: []step{
		{`logs p-node -c main`,
			`w-`},
	}},
	{name: "the downward API has the memory limit", manifests: demoPod("p-limit", "Never", "", `args: [env, WHERE]
resources: {limits: {memory: 64Mi}}
env: [{name: WHERE, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]`), steps: []step{
		{`logs p-limit -c main`,
			`67108864`},
	}},
	{name: "a downward API volume has the labels",
		manifests: demoPod("p-downvol", "Never",
			`volumes: [{name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]`,
			`args: [cat, /d/labels]
volumeMounts: [{name: d, mountPath: /d}]`), steps: []step{
			{`logs p-downvol -c main`,
				`app="p-downvol"`},
		}},
	{name: "a ConfigMap is a variable", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-env}
data: {key: value1}
---
` + demoPod("p-cmenv", "Never", "", `args: [env, A]
env: [{name: A, valueFrom: {configMapKeyRef: {name: c-env, key: key}}}]`), steps: []step{
		{`logs p-cmenv -c main`,
			`value1`},
	}},
	{name: "a ConfigMap is a volume", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-vol}
data: {key: value2}
---
` + demoPod("p-cmvol", "Never", `volumes: [{name: c, configMap: {name: c-vol}}]`, `args: [cat, /c/key]
volumeMounts: [{name: c, mountPath: /c}]`), steps: []step{
		{`logs p-cmvol -c main`,
			`value2`},
	}},
	{name: "a ConfigMap's key is mounted at a path", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-path}
data: {key: value3}
---
` + demoPod("p-cmpath", "Never",
		`volumes: [{name: c, configMap: {name: c-path, items: [{key: key, path: a/b}]}}]`,
		`args: [cat, /c/a/b]
volumeMounts: [{name: c, mountPath: /c}]`), steps: []step{
		{`logs p-cmpath -c main`,
			`value3`},
	}},
	{name: "an optional ConfigMap may be missing",
		manifests: demoPod("p-cmopt", "Never",
			`volumes: [{name: c, configMap: {name: c-none, optional: true}}]`,
			`args: [echo, started]
volumeMounts: [{name: c, mountPath: /c}]`), steps: []step{
			{`logs p-cmopt -c main`,
				`started`},
		}},
	{name: "all keys of a ConfigMap become variables", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-all}
data: {key: value4}
---
` + demoPod("p-cmall", "Never", "", `args: [env, key]
envFrom: [{configMapRef: {name: c-all}}]`), steps: []step{
		{`logs p-cmall -c main`,
			`value4`},
	}},
	{name: "a Secret is a variable", manifests: `apiVersion: v1
kind: Secret
metadata: {name: s-env}
stringData: {key: secret1}
---
` + demoPod("p-senv", "Never", "", `args: [env, A]
env: [{name: A, valueFrom: {secretKeyRef: {name: s-env, key: key}}}]`), steps: []step{
		{`logs p-senv -c main`,
			`secret1`},
	}},
	{name: "a Secret is a volume", manifests: `apiVersion: v1
kind: Secret
metadata: {name: s-vol}
stringData: {key: secret2}
---
` + demoPod("p-svol", "Never", `volumes: [{name: s, secret: {secretName: s-vol}}]`, `args: [cat, /s/key]
volumeMounts: [{name: s, mountPath: /s}]`), steps: []step{
		{`logs p-svol -c main`,
			`secret2`},
	}},
	{name: "a projected volume joins sources", manifests: `apiVersion: v1
kind: ConfigMap
metadata: {name: c-proj}
data: {key: value5}
---
` + demoPod("p-proj", "Never",
		`volumes: [{name: p, projected: {sources: [{configMap: {name: c-proj}}, {downwardAPI: {items: [{path: name,
      fieldRef: {fieldPath: metadata.name}}]}}]}}]`, `args: [cat, /p/key, /p/name]
volumeMounts: [{name: p, mountPath: /p}]`), steps: []step{
		{`logs p-proj -c main`,
			`value5`},
		{`logs p-proj -c main`,
			`p-proj`},
	}},
	{name: "a pod has a token of its service account",
		manifests: demoPod("p-token", "Never", "", `args: [ls, /var/run/secrets/kubernetes.io/serviceaccount]`),
		steps: []step{
			{`logs p-token -c main`,
				`token`},
		}},
	{name: "a pod may have no token",
		manifests: demoPod("p-notoken", "Never", `automountServiceAccountToken: false`, `args: [ls, /]`),
		steps: []step{
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
