//go:build realnodes

package realnodes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"atoll.dev/node/join"
	"atoll.dev/test/testsite"
)

// A customer's machine has a route to the router only. It joins by a token, survives kills in the middle, runs pods,
// and leaves; others are refused; a machine whose pool is deleted stops.
func TestAMachineOfACustomerJoinsAndLeaves(t *testing.T) {
	skipLong(t)
	s := newSite(t)
	s.apply(orderManifests("e", "external", 1))

	good := s.token("m00001", time.Hour)
	wrong := s.invitation
	wrong.Token = "m00001.ffffffffffffffff"
	s.refused("a wrong token", s.encode(wrong), "the token is wrong, was used, or has expired")
	s.refused("an expired token", s.token("m00000", -time.Minute), "the token is wrong, was used, or has expired")
	s.refused("no token", "", "has no join to continue")
	s.refused("a word", "token", "this is no token of a node pool")

	home := s.home()
	s.join(home, good).killWhen("join.json")
	s.join(home, good).killWhen("kubelet/pki/kubelet-client-current.pem")
	s.join(home, "").killWhen("status.json")
	m := s.join(home, "")
	s.awaitPool(1)
	s.refused("another machine with the token", good, "atoll: ") // its Node is there, or its token deleted
	testsite.EventuallyWithin(t, "the token of a machine that is Ready is worth nothing", limit, func() error {
		output, err := s.join(s.home(), good).await()
		if err == nil || !strings.Contains(output, "the token is wrong, was used") {
			return fmt.Errorf("%w, %q", err, output)
		}
		return nil
	})
	s.refused("a machine more than the pool has", s.token("m00002", time.Hour), "node pool e is full: 1 of 1 machines")
	s.awaitOutput("e-m00001", "get", "nodes", "-o", "name")

	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: demo, image: "atoll.dev/demo:v1", imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  containers: [{name: demo, image: "atoll.dev/demo:v1", imagePullPolicy: Never, args: [echo, hello from a customer]}]
`)
	s.awaitOutput("Running", "get", "pod", "server", "-o", "jsonpath={.status.phase}")
	s.awaitOutput("server", "exec", "server", "--", "/demo", "hostname")
	s.awaitOutput("hello from a customer", "logs", "once")
	// CoreDNS reads the cluster through the router, to which it cannot name the plane.
	s.awaitOutput("10.96.0.1", "exec", "server", "--", "/demo", "resolve", "kubernetes.default.svc.cluster.local")

	_, err := s.run("", "delete", "pod", "server", "once", "--now")
	if err != nil {
		t.Error(err)
	}
	s.leave(home)
	if output, err := m.await(); err != nil && !strings.Contains(output, join.ErrRemoved.Error()) {
		t.Errorf("the machine that has left ends with %v:\n%s", err, output)
	}
	s.awaitPool(0)

	home = s.home()
	m = s.join(home, s.token("m00003", time.Hour))
	s.awaitPool(1)
	if _, err := s.run("", "delete", "nodepool", "-n", namespace, cluster+"-e"); err != nil {
		t.Fatal(err)
	}
	if output, err := m.await(); err == nil || !strings.Contains(output, join.ErrRemoved.Error()) {
		t.Errorf("a machine whose pool is deleted ends with %v:\n%s", err, output)
	}
	if output, err := s.join(home, "").await(); err == nil || !strings.Contains(output, "atoll node leave") {
		t.Errorf("a removed machine that joins again: %v, %q", err, output)
	}
	s.leave(home)
}
