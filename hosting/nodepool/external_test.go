package nodepool

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	realnode "atoll.dev/node"
)

// machineKey is the key of a customer's machine.
func machineKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// joinCSR is the request of a machine, base64 as in its object.
func joinCSR(t *testing.T, key *ecdsa.PrivateKey, template x509.CertificateRequest) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func subjectOf(node string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node,
		Organization: []string{"system:nodes"}}}
}

func TestOnlyTheOneNodeOfATokenIsRead(t *testing.T) {
	key := machineKey(t)
	const signer = "kubernetes.io/kube-apiserver-client-kubelet"
	good := []any{"system:bootstrappers", "system:bootstrappers:atoll:join:a"}
	client := []any{"digital signature", "client auth"}
	for name, c := range map[string]struct {
		user, signer string
		groups       []any
		usages       []any
		csr          x509.CertificateRequest
		status       []any
		ours         bool
		invalid      string // a part of it
	}{
		"its own name": {"system:bootstrap:abcdef", signer, good, client, subjectOf("a-abcdef"), nil, true, ""},
		"the name of another token": {"system:bootstrap:abcdef", signer, good, client, subjectOf("a-abcdeg"), nil, true,
			"the token is for system:node:a-abcdef"},
		"a node of pool a-b": {"system:bootstrap:abcdef", signer, good, client, subjectOf("a-b-abcdef"), nil, true,
			"the token is for system:node:a-abcdef"},
		"an administrator": {"system:bootstrap:abcdef", signer, good, client, x509.CertificateRequest{Subject: pkix.Name{
			CommonName: "system:node:a-abcdef", Organization: []string{"system:masters"}}}, nil, true, "asks for more"},
		"a serving name": {"system:bootstrap:abcdef", signer, good, client, x509.CertificateRequest{
			Subject: subjectOf("a-abcdef").Subject, DNSNames: []string{"kubernetes"}}, nil, true, "asks for more"},
		"another signer": {"system:bootstrap:abcdef", "kubernetes.io/kubelet-serving", good, client, subjectOf("a-abcdef"),
			nil, true, "no certificate of kubernetes.io/kubelet-serving"},
		"another use": {"system:bootstrap:abcdef", signer, good, []any{"digital signature", "server auth"},
			subjectOf("a-abcdef"), nil, true, "is not for"},
		"two pools": {"system:bootstrap:abcdef", signer, append(good, "system:bootstrappers:atoll:join:b"), client,
			subjectOf("a-abcdef"), nil, true, "more than one"},
		"a decided request": {"system:bootstrap:abcdef", signer, good, client, subjectOf("a-abcdef"),
			[]any{map[string]any{"type": "Denied"}}, false, ""},
		"the token of one local node": {"system:bootstrap:abcdef", signer,
			[]any{"system:bootstrappers:atoll:node:a-0"}, client, subjectOf("a-0"), nil, false, ""},
		"a user in the group": {"eve", signer, good, client, subjectOf("a-abcdef"), nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{
				"spec": map[string]any{"username": c.user, "groups": c.groups, "signerName": c.signer, "usages": c.usages,
					"request": joinCSR(t, key, c.csr)},
				"status": map[string]any{"conditions": c.status},
			}}
			r, ours := parseJoinRequest(object)
			if ours != c.ours || (c.invalid == "") != (r.invalid == "") || !strings.Contains(r.invalid, c.invalid) {
				t.Errorf("ours %t, invalid %q; want %t, %q", ours, r.invalid, c.ours, c.invalid)
			}
			if ours && r.node != "a-abcdef" {
				t.Errorf("the node of the token is %s", r.node)
			}
		})
	}
}

func TestANodeHasTheNameOfItsPool(t *testing.T) {
	of := controlplane.ID{Namespace: "ns", Name: "hc"}
	for name, want := range map[string]bool{"a-0": true, "a-abcdef": true, "a-b-0": false, "a-": false, "b-0": false,
		"a": false, "hc-a-0": false} {
		if got := isNameOf(of, "hc-a", name); got != want {
			t.Errorf("Node %s is of pool hc-a: %t", name, got)
		}
	}
}

func TestAMachineIsAdmittedOnceAndWithinItsPool(t *testing.T) {
	r := joinRequest{pool: "a", node: "a-abcdef", key: "k1"}
	open := joinState{poolExists: true, provider: cluster.External, maxMachines: 2, joined: 1, hasToken: true}
	with := func(change func(*joinState)) joinState {
		s := open
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		state joinState
		want  joinDecision
	}{
		"there is room": {open, joinDecision{true, true, "machine 2 of 2 of node pool a"}},
		"the pool is full": {with(func(s *joinState) { s.joined = 2 }), joinDecision{reason: "node pool a is full: 2 of 2 " +
			"machines have joined; scale it with `atoll nodepool scale a`, or take a machine out with `atoll node leave`"}},
		"the machine asks again, in a full pool": {with(func(s *joinState) {
			s.joined, s.nodeExists, s.nodeKey = 2, true, "k1"
		}), joinDecision{true, false, "the machine of this node asks again"}},
		"another machine with the token": {with(func(s *joinState) { s.nodeExists, s.nodeKey = true, "k2" }),
			joinDecision{reason: "another machine is node a-abcdef: a token is for one machine; make another token"}},
		"a node that no machine has joined as": {with(func(s *joinState) { s.nodeExists = true }),
			joinDecision{reason: "another machine is node a-abcdef: a token is for one machine; make another token"}},
		"another machine has used the token, and its node was deleted": {with(func(s *joinState) { s.tokenKey = "k2" }),
			joinDecision{reason: "another machine has used the token: a token is for one machine; make another token"}},
		"the machine's node was deleted": {with(func(s *joinState) { s.tokenKey = "k1" }), joinDecision{true, true,
			"machine 2 of 2 of node pool a"}},
		"the token was deleted": {with(func(s *joinState) { s.hasToken = false }),
			joinDecision{reason: "the token was deleted; make another token"}},
		"no pool": {joinState{}, joinDecision{reason: "the cluster has no node pool a"}},
		"a pool of simulated nodes": {with(func(s *joinState) { s.provider = cluster.Simulated }), joinDecision{
			reason: "node pool a has the provider simulated: machines of customers join pools with the provider external"}},
		"a paused pool": {with(func(s *joinState) { s.paused = true }), joinDecision{reason: "node pool a is paused"}},
		"an invalid pool": {with(func(s *joinState) { s.invalid = "why" }), joinDecision{
			reason: "node pool a can have no nodes: why"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideJoin(r, c.state); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestPlanOfAnExternalPool(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	machine := func(name string, change func(*node)) *node {
		n := &node{}
		n.Metadata.Name, n.Metadata.CreationTimestamp = name, metav1.NewTime(now.Add(-time.Hour))
		n.Status.NodeInfo.Runtime = "containerd://2"
		n.Status.Conditions = []condition{{Type: "Ready", Status: "True", LastTransitionTime: n.Metadata.CreationTimestamp}}
		if change != nil {
			change(n)
		}
		return n
	}
	unready := func(n *node) { n.Status.Conditions[0].Status = "Unknown" }
	leaves := func(n *node) { n.Metadata.Annotations = map[string]string{realnode.LeavingAnnotation: "true"} }
	neverCame := func(n *node) { unready(n); n.Status.NodeInfo.Runtime = "" }
	isNew := func(n *node) { neverCame(n); n.Metadata.CreationTimestamp = metav1.NewTime(now) }
	w := wanted{provider: cluster.External, replicas: 3, version: "1.36.3"}
	names := func(nodes []*node) (all string) {
		for _, n := range nodes {
			all += n.Metadata.Name + " "
		}
		return strings.TrimSpace(all)
	}
	for name, c := range map[string]struct {
		nodes         []*node
		replicas      int
		drain, remove string
	}{
		"missing machines are not made":          {[]*node{machine("a-x", nil)}, 3, "", ""},
		"a machine that is away stays":           {[]*node{machine("a-x", unready)}, 3, "", ""},
		"a machine that leaves is drained":       {[]*node{machine("a-x", leaves)}, 3, "a-x", ""},
		"the machines of a smaller pool go":      {[]*node{machine("a-x", nil), machine("a-y", unready)}, 1, "a-y", ""},
		"an admitted machine that never came":    {[]*node{machine("a-x", neverCame)}, 3, "", "a-x"},
		"an admitted machine that is on its way": {[]*node{machine("a-x", isNew)}, 3, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.replicas = c.replicas
			d := plan(w, c.nodes, now, 8*time.Minute)
			if d.createCount != 0 || len(d.inPlace) > 0 || names(d.drain) != c.drain || names(d.remove) != c.remove {
				t.Errorf("create %d, drain %q, remove %q; want none, %q, %q", d.createCount, names(d.drain), names(d.remove),
					c.drain, c.remove)
			}
		})
	}
}

// joinAs sends the request of a machine with a token, and returns why it is refused.
func (w *world) joinAs(id, secret, node string, key *ecdsa.PrivateKey) (refused string, err error) {
	w.t.Helper()
	admin, err := w.planes.config.RESTConfig()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := rest.LoadTLSFiles(admin); err != nil {
		w.t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(&rest.Config{Host: admin.Host, BearerToken: id + "." + secret,
		TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData, ServerName: admin.ServerName}})
	if err != nil {
		w.t.Fatal(err)
	}
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
		"metadata": map[string]any{"generateName": "join-", "labels": map[string]any{realnode.JoinLabel: "true"}},
		"spec": map[string]any{"request": joinCSR(w.t, key, subjectOf(node)), "usages": []any{"digital signature",
			"client auth"}, "signerName": "kubernetes.io/kube-apiserver-client-kubelet"}}}
	made, err := client.Resource(requestResource()).Create(w.t.Context(), request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	w.eventually("the answer to "+node, func() error {
		object, err := client.Resource(requestResource()).Get(w.t.Context(), made.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		refused = ""
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, c := range conditions {
			if c, _ := c.(map[string]any); c["type"] == "Denied" {
				refused = fmt.Sprint(c["message"])
				return nil
			}
		}
		if certificate, _, _ := unstructured.NestedString(object.Object, "status", "certificate"); certificate == "" {
			return errors.New("there is none")
		}
		return nil
	})
	return refused, nil
}

// token makes the token of an invitation.
func (w *world) token(id, pool string, expires time.Time) {
	w.t.Helper()
	w.mc.Create(secretResource(), "kube-system", map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]any{"name": "bootstrap-token-" + id},
		"stringData": map[string]any{"token-id": id, "token-secret": "0123456789abcdef",
			"usage-bootstrap-authentication": "true", "expiration": expires.UTC().Format(time.RFC3339),
			"auth-extra-groups": realnode.JoinGroup(pool)}})
	w.t.Cleanup(func() {
		_ = w.admin.Resource(secretResource()).Namespace("kube-system").Delete(context.WithoutCancel(w.t.Context()),
			"bootstrap-token-"+id, metav1.DeleteOptions{})
	})
}

func TestMachinesJoinAnExternalPool(t *testing.T) {
	w := newWorld(t, Options{})
	w.realPool("e", cluster.External, 1)
	w.realPool("e-f", cluster.External, 1)
	w.pool("s", 0, nil)
	w.await("e", hypershift.AllMachinesReady, metav1.ConditionFalse, WaitingForMachines)
	w.ready("e")
	w.await("e", Simulated, metav1.ConditionFalse, "External")
	w.awaitNodes("e")
	const secret = "0123456789abcdef"
	soon := time.Now().Add(time.Hour)
	for id, pool := range map[string]string{"aaaaa1": "e", "aaaaa2": "e", "aaaaa3": "s", "aaaaa4": "none"} {
		w.token(id, pool, soon)
	}
	w.token("aaaaa5", "e", time.Now().Add(-time.Minute))
	first := machineKey(t)
	refused := func(what, id, name, want string, key *ecdsa.PrivateKey) {
		t.Helper()
		if got, err := w.joinAs(id, secret, name, key); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s is refused with %q, %v; want %q", what, got, err, want)
		}
	}
	refused("a node of pool e-f with a token of pool e", "aaaaa1", "e-f-aaaaa1", "is for system:node:e-aaaaa1", first)
	refused("a machine of a simulated pool", "aaaaa3", "s-aaaaa3", "provider simulated", first)
	refused("a machine of no pool", "aaaaa4", "none-aaaaa4", "no node pool none", first)
	for id, wrong := range map[string]string{"aaaaa1": "ffffffffffffffff", "aaaaa5": secret} {
		if _, err := w.joinAs(id, wrong, "e-"+id, first); err == nil {
			t.Errorf("token %s.%s is accepted", id, wrong)
		}
	}
	w.awaitNodes("e")
	if refusal, err := w.joinAs("aaaaa1", secret, "e-aaaaa1", first); err != nil || refusal != "" {
		t.Fatalf("the first machine is refused: %s, %v", refusal, err)
	}
	w.awaitNodes("e", "e-aaaaa1")
	joined := w.nodes("e")[0]
	var place realnode.Place
	if err := json.Unmarshal([]byte(joined.GetAnnotations()[realnode.PlaceAnnotation]), &place); err != nil {
		t.Fatal(err)
	}
	if pods, _, _ := unstructured.NestedString(joined.Object, "spec", "podCIDR"); pods == "" || place.PodCIDR != pods ||
		place.ClusterDNS == "" || place.Address == "" || place.Advertised == "" {
		t.Errorf("the place of a Node with the network %s is %+v", pods, place)
	}
	if refusal, err := w.joinAs("aaaaa1", secret, "e-aaaaa1", first); err != nil || refusal != "" {
		t.Errorf("the same machine is refused when it asks again: %s, %v", refusal, err)
	}
	refused("another machine with the token", "aaaaa1", "e-aaaaa1", "another machine is node e-aaaaa1", machineKey(t))
	refused("a machine more than the pool has", "aaaaa2", "e-aaaaa2", "node pool e is full: 1 of 1", machineKey(t))
	w.awaitNodes("e", "e-aaaaa1")

	t.Run("the token of a deleted node is for no other machine", func(t *testing.T) {
		if err := w.admin.Resource(nodeResource()).Delete(t.Context(), "e-aaaaa1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		refused("another machine", "aaaaa1", "e-aaaaa1", "another machine has used the token", machineKey(t))
		if refusal, err := w.joinAs("aaaaa1", secret, "e-aaaaa1", first); err != nil || refusal != "" {
			t.Errorf("the machine is refused: %s, %v", refusal, err)
		}
		w.awaitNodes("e", "e-aaaaa1")
	})
	t.Run("the token of a machine that is Ready is deleted", func(t *testing.T) {
		w.patch(nodeResource(), "", "e-aaaaa1", map[string]any{"status": map[string]any{
			"nodeInfo": map[string]any{"containerRuntimeVersion": "containerd://2", "kubeletVersion": "v1.36.3"},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True", "lastTransitionTime": time.Now().UTC().Format(
				time.RFC3339)}}}}, "status")
		w.eventually("the end of the token", func() error {
			_, err := w.admin.Resource(secretResource()).Namespace("kube-system").Get(t.Context(), "bootstrap-token-aaaaa1",
				metav1.GetOptions{})
			if err == nil {
				return errors.New("it is there")
			}
			return nil
		})
		if p := w.ready("e"); p.Status.Replicas != 1 {
			w.eventually("the machine counts", func() error {
				if p := w.ready("e"); p.Status.Replicas != 1 {
					return fmt.Errorf("%d nodes are ready", p.Status.Replicas)
				}
				return nil
			})
		}
	})
	t.Run("a machine that leaves makes room", func(t *testing.T) {
		w.patch(nodeResource(), "", "e-aaaaa1", map[string]any{"metadata": map[string]any{"annotations": map[string]any{
			realnode.LeavingAnnotation: "true"}}})
		w.awaitNodes("e")
		if refusal, err := w.joinAs("aaaaa2", secret, "e-aaaaa2", machineKey(t)); err != nil || refusal != "" {
			t.Errorf("the next machine is refused: %s, %v", refusal, err)
		}
		w.awaitNodes("e", "e-aaaaa2")
	})
	for _, pool := range []string{"e", "e-f", "s"} {
		w.delete(pool)
		w.gone(pool)
		w.awaitNodes(pool)
	}
}
