//go:build realnodes

package realnodes

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"atoll.dev/test/testsite"
)

// TestLifeOfAPoolOfRealNodes changes one pool, step by step, while a Deployment runs on it.
func TestLifeOfAPoolOfRealNodes(t *testing.T) {
	skipLong(t)
	w := newWorld(t, time.Minute)
	w.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{key: life, operator: Exists}]
      containers: [{name: web, image: "atoll.dev/demo:v1", imagePullPolicy: Never}]
`)
	w.awaitDeployment()

	w.changePool(`{"nodeLabels": {"tier": "web"}, "taints": [{"key": "life", "value": "v", "effect": "NoSchedule"}]}`)
	w.await("labels and taints", "w-0 life\nw-1 life\n", "get", "nodes", "-l", "tier=web", "--sort-by", ".metadata.name",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.taints[*].key}{"\n"}{end}`)

	w.changePool(`{"replicas": 1}`)
	w.awaitNodes(1)
	w.awaitDeployment() // the drain has moved its pods
	w.awaitHomes(1)
	w.changePool(`{"replicas": 2}`)
	w.awaitNodes(2)

	before := w.uids()
	if _, err := w.run("", "delete", "node", "w-0", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	w.awaitOtherNodes(before[:1], 2)

	before = w.uids()
	w.changePool(`{"platform": {"type": "AWS", "aws": {"instanceType": "m6a.xlarge"}}, "management": {"autoRepair": true,
		"upgradeType": "Replace", "replace": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}}`)
	w.awaitOtherNodes(before, 2)
	w.awaitHomes(2)
	w.awaitDeployment()

	before = w.uids()
	w.stopKubelet()
	testsite.EventuallyWithin(t, "a node whose kubelet hangs is replaced", 2*limit, func() error {
		kept := 0
		for _, uid := range w.uids() {
			if slices.Contains(before, uid) {
				kept++
			}
		}
		if kept != 1 {
			return fmt.Errorf("%d of the nodes of before are left", kept)
		}
		return nil
	})
	w.awaitNodes(2)
	w.awaitDeployment()
}

// changePool patches the spec of the pool.
func (w *world) changePool(spec string) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"spec": %s}`, spec)
	if _, err := w.run("", "-n", namespace, "patch", "nodepool", cluster+"-w", "--type=merge", "-p", patch); err != nil {
		w.t.Fatal(err)
	}
}

// await repeats a command of kubectl until it prints exactly a text.
func (w *world) await(what, want string, args ...string) {
	w.t.Helper()
	testsite.EventuallyWithin(w.t, what, limit, func() error {
		got, err := w.run("", args...)
		if err == nil && got != want {
			err = fmt.Errorf("it prints %q, want %q", got, want)
		}
		return err
	})
}

func (w *world) awaitDeployment() {
	w.t.Helper()
	w.await("the Deployment is available", "3 3", "get", "deployment", "web", "-o",
		"jsonpath={.status.availableReplicas} {.status.updatedReplicas}")
}

// uids returns the UIDs of the Nodes, in the order of their names.
func (w *world) uids() []string {
	w.t.Helper()
	out, err := w.run("", "get", "nodes", "--sort-by", ".metadata.name", "-o", "jsonpath={.items[*].metadata.uid}")
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Fields(out)
}

// awaitNodes waits until there are so many nodes, all ready.
func (w *world) awaitNodes(count int) {
	w.t.Helper()
	w.await(fmt.Sprintf("%d ready nodes", count), strings.TrimSpace(strings.Repeat("True ", count)), "get", "nodes", "-o",
		`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
}

// awaitOtherNodes waits until there are so many ready nodes, none with one of the UIDs.
func (w *world) awaitOtherNodes(former []string, count int) {
	w.t.Helper()
	testsite.EventuallyWithin(w.t, "the nodes are replaced", 2*limit, func() error {
		now := w.uids()
		if len(now) != count || slices.ContainsFunc(now, func(uid string) bool { return slices.Contains(former, uid) }) {
			return fmt.Errorf("there are %v", now)
		}
		return nil
	})
	w.awaitNodes(count)
}

// awaitHomes waits until this machine has so many homes of nodes.
func (w *world) awaitHomes(count int) {
	w.t.Helper()
	testsite.EventuallyWithin(w.t, fmt.Sprintf("%d homes", count), limit, func() error {
		if homes, err := os.ReadDir(w.dir); err != nil || len(homes) != count {
			return fmt.Errorf("homes %v, error %v", homes, err)
		}
		return nil
	})
}

// groupOf returns the name of the cgroup of the node with a home.
func groupOf(home string) string {
	return fmt.Sprintf("/atoll-nodes/%x", sha256.Sum256([]byte(home)))[:len("/atoll-nodes/")+10]
}

// stopKubelet stops the process of the kubelet of one node, so that the node is not ready any more.
func (w *world) stopKubelet() {
	w.t.Helper()
	homes, err := os.ReadDir(w.dir)
	if err != nil || len(homes) == 0 {
		w.t.Fatalf("homes %v, error %v", homes, err)
	}
	group := groupOf(filepath.Join(w.dir, homes[0].Name()))
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		args := strings.Split(string(line), "\x00")
		if len(args) < 2 || !strings.HasSuffix(args[0], "atoll-node") || !strings.Contains(string(groups), group) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	w.t.Fatalf("no atoll-node runs in %s", group)
}
