package nodepool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/localnodes"
)

// awaitTokens waits until the plane has so many bootstrap tokens of a Node: one or none.
func (w *world) awaitTokens(uid types.UID, want int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d tokens of %s", want, uid), func() error {
		_, err := w.admin.Resource(secretResource()).Namespace("kube-system").Get(w.t.Context(), tokenSecret(uid),
			metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if has := err == nil; has != (want == 1) {
			return fmt.Errorf("a token exists: %t", has)
		}
		return nil
	})
}

// deleteLocalPool deletes a pool with its Nodes, whose names another test may need.
func (w *world) deleteLocalPool(m *machinesInMemory, name string) {
	w.t.Helper()
	w.delete(name)
	w.awaitNodes(name)
	w.eventually("the end of the machines of "+name, func() error {
		m.end()
		if left := m.names(); len(left) > 0 {
			return fmt.Errorf("machines %v", left)
		}
		return nil
	})
	w.gone(name)
}

// A pool without room made bootstrap tokens and Nodes for ever, and nobody deleted the tokens.
func TestANodeWithoutRoomGetsNoTokenAndTokensAreDeleted(t *testing.T) {
	m := newMachinesInMemory()
	m.most = 1
	// Patience is longer than the test: the deletion of the pool waits for no pod of a Node without a kubelet.
	w := newWorld(t, Options{Machines: m, Router: "127.0.0.1:6443", Patience: time.Hour})
	w.realPool("r", cluster.Local, 2)
	w.awaitNodes("r", "r-0", "r-1")
	w.eventually("the pool having no room", func() error {
		pool := w.await("r", hypershift.AllNodesHealthy, metav1.ConditionFalse, NodesNotReady)
		for _, c := range pool.Status.Conditions {
			if c.Type == hypershift.AllNodesHealthy && !strings.Contains(c.Message, localnodes.ErrFull.Error()) {
				return fmt.Errorf("the message is %q", c.Message)
			}
		}
		return nil
	})
	for _, n := range w.nodes("r") {
		m.mu.Lock()
		tokens := 0
		if _, runs := m.orders[n.GetUID()]; runs {
			tokens = 1
		}
		m.mu.Unlock()
		w.awaitTokens(n.GetUID(), tokens)
	}
	w.deleteLocalPool(m, "r")
}

func TestPlanKeepsANodeThatWaitsForRoom(t *testing.T) {
	n := testNode(0, "1.36.3", metav1.ConditionFalse)
	n.Metadata.UID = "u0"
	w := want(1, "1.36.3")
	w.provider, w.noRoom = cluster.Local, localnodes.ErrFull
	now := epoch.Add(time.Hour)
	if d := plan(w, []*node{n}, now, time.Minute); len(d.remove) > 0 || d.createCount > 0 {
		t.Errorf("a node without a machine: %+v", d)
	}
	w.awakeSince = map[types.UID]time.Time{"u0": epoch}
	if d := plan(w, []*node{n}, now, time.Minute); len(d.remove) != 1 {
		t.Errorf("a node with a machine: %+v", d)
	}
}

// One Node that can have no machine stopped all after it.
func TestANodeThatCanHaveNoMachineStopsNoOther(t *testing.T) {
	m := newMachinesInMemory()
	w := newWorld(t, Options{Machines: m, Router: "127.0.0.1:6443"})
	w.mc.Create(nodeResource(), "", map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{
		"name": "o-0", "labels": map[string]any{hypershift.NodePoolLabel: w.cluster + "-o",
			instanceTypeLabel: "m6a.large"}},
		// with the pool's version: the pool would replace another node, and make one more
		"status": map[string]any{"nodeInfo": map[string]any{"kubeletVersion": "v1.36.3"}}})
	w.realPool("o", cluster.Local, 2)
	w.awaitMachines(m, "o-1")
	joined := w.nodes("o")[1].GetUID()
	w.awaitTokens(joined, 1)
	m.mu.Lock()
	m.joined[joined] = true
	pool := m.orders[joined].Pool
	m.mu.Unlock()
	m.changed(pool)
	w.awaitTokens(joined, 0)
	w.deleteLocalPool(m, "o")
}

// A drain of real nodes polled 20 times a second, possibly for ever.
func TestAnOldDrainPollsLessAndEndsWithoutItsKubelet(t *testing.T) {
	for age, want := range map[time.Duration]time.Duration{0: minDrainRetry, 5 * time.Second: 500 * time.Millisecond,
		time.Hour: maxDrainRetry} {
		if got := drainRetryAfter(age); got != want {
			t.Errorf("after %s a drain pauses for %s, want %s", age, got, want)
		}
	}
	n := testNode(0, "1.36.3", metav1.ConditionFalse)
	n.Metadata.UID = "u0"
	n.Metadata.Annotations = map[string]string{drainingAnnotation: epoch.Format(time.RFC3339)}
	n.Status.NodeInfo.Runtime = "containerd://2.1.4"
	w := want(0, "1.36.3")
	w.provider, w.awakeSince = cluster.Local, map[types.UID]time.Time{"u0": epoch}
	if d := plan(w, []*node{n}, epoch.Add(50*time.Second), time.Minute); len(d.drain) != 1 || d.again != 10*time.Second {
		t.Errorf("a draining node that has just become unready: %+v", d)
	}
	if d := plan(w, []*node{n}, epoch.Add(time.Hour), time.Minute); len(d.remove) != 1 || len(d.drain) > 0 {
		t.Errorf("a draining node without a kubelet: %+v", d)
	}
	w.hibernated = true
	if d := plan(w, []*node{n}, epoch.Add(time.Hour), time.Minute); len(d.remove) > 0 {
		t.Errorf("a draining node of a hibernated cluster: %+v", d)
	}
}

// The deletion of a pool waited until its time limit for pods that the scheduler had bound to a Node without a kubelet.
func TestADrainingNodeThatNeverHadAKubeletIsRemoved(t *testing.T) {
	n := testNode(0, "1.36.3", metav1.ConditionFalse)
	n.Metadata.Annotations = map[string]string{drainingAnnotation: epoch.Format(time.RFC3339)}
	for _, c := range []struct {
		name             string
		provider         cluster.NodeProvider
		runtime          string
		hibernated       bool
		removed, drained int
	}{
		{"real, without a kubelet", cluster.Local, "", false, 1, 0},
		{"real, with a kubelet that has reported", cluster.Local, "containerd://2.1.4", false, 0, 1},
		{"real, of a hibernated cluster", cluster.Local, "", true, 0, 1},
		{"simulated", cluster.Simulated, "", false, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := want(0, "1.36.3")
			w.provider, w.hibernated, n.Status.NodeInfo.Runtime = c.provider, c.hibernated, c.runtime
			d := plan(w, []*node{n}, epoch.Add(time.Second), time.Minute)
			if len(d.remove) != c.removed || len(d.drain) != c.drained {
				t.Errorf("%d removed and %d drained, want %d and %d", len(d.remove), len(d.drain), c.removed, c.drained)
			}
		})
	}
}
