package nodepool

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/cluster"
	realnode "atoll.dev/node"
)

// joinRequest is the first certificate request of a machine that joins.
type joinRequest struct {
	pool    string // the customer's name of the pool that the token is for
	token   string // the public part of the token
	node    string // name of the only Node that the token may become
	key     string // hash of the machine's public key
	invalid string // why it is no request of such a machine; "" when it is one
}

// joinState is the state of the cluster on which the decision about a request depends.
type joinState struct {
	poolExists  bool // and is not being deleted
	provider    cluster.NodeProvider
	invalid     string // why the pool can have no nodes
	paused      bool
	maxMachines int // machines that the pool may have
	joined      int // machines that have joined and are not leaving
	nodeExists  bool
	nodeKey     string // key of the machine that has joined as this Node
	hasToken    bool   // the token was not deleted since the request
	tokenUID    types.UID
	tokenKey    string // of the machine that has used the token; "": none has
}

// joinDecision is the answer to a request.
type joinDecision struct {
	admit    bool
	makeNode bool // create the Node before the decision is written
	reason   string
}

// parseJoinRequest reads a certificate request. ours is false when hosting must not decide about it: it is decided,
// or its sender has no token of a pool's invitation. Package kube/kubelets decides about the other requests of
// kubelets.
func parseJoinRequest(object *unstructured.Unstructured) (r joinRequest, ours bool) {
	text := func(fields ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, fields...)
		return value
	}
	id, hasToken := strings.CutPrefix(text("spec", "username"), "system:bootstrap:")
	groups, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "groups")
	var pools []string
	for _, group := range groups {
		if pool, ok := realnode.PoolOfGroup(group); ok {
			pools = append(pools, pool)
		}
	}
	if !hasToken || len(pools) == 0 || isDecided(object) {
		return r, false
	}
	r.pool, r.token, r.node = pools[0], id, realnode.JoinedName(pools[0], id)
	if len(pools) > 1 {
		r.invalid = "the token is for more than one node pool"
		return r, true
	}
	if signer := text("spec", "signerName"); signer != "kubernetes.io/kube-apiserver-client-kubelet" {
		r.invalid = "the token of a node pool gets no certificate of " + signer
		return r, true
	}
	usages, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "usages")
	slices.Sort(usages)
	if !slices.Equal(usages, []string{"client auth", "digital signature"}) {
		r.invalid = fmt.Sprintf("the certificate of a node is not for %v", usages)
		return r, true
	}
	r.key, r.invalid = parseMachineKey(text("spec", "request"), r.node)
	return r, true
}

// parseMachineKey returns the hash of the key in a certificate request, or why the request is not that of a node.
func parseMachineKey(encoded, node string) (key, invalid string) {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", "the certificate request is not base64"
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return "", "the certificate request is not PEM"
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return "", "the certificate request cannot be read: " + err.Error()
	}
	if got, want := csr.Subject.CommonName, "system:node:"+node; got != want {
		return "", fmt.Sprintf("the token is for %s, not for %q", want, got)
	}
	if !slices.Equal(csr.Subject.Organization, []string{"system:nodes"}) || len(csr.DNSNames) > 0 ||
		len(csr.IPAddresses) > 0 || len(csr.EmailAddresses) > 0 || len(csr.URIs) > 0 {
		return "", "the certificate request asks for more than the client certificate of a node"
	}
	return fmt.Sprintf("%x", sha256.Sum256(csr.RawSubjectPublicKeyInfo)), ""
}

// decideJoin decides about the request of a machine. A machine that has joined may send a request again; another
// machine may not use its token.
func decideJoin(r joinRequest, s joinState) joinDecision {
	no := func(format string, args ...any) joinDecision {
		return joinDecision{reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.invalid != "":
		return no("%s", r.invalid)
	case !s.poolExists:
		return no("the cluster has no node pool %s", r.pool)
	case s.provider != cluster.External:
		return no("node pool %s has the provider %s: machines of customers join pools with the provider external", r.pool,
			s.provider)
	case s.nodeExists && s.nodeKey == r.key:
		return joinDecision{admit: true, reason: "the machine of this node asks again"}
	case s.nodeExists:
		return no("another machine is node %s: a token is for one machine; make another token", r.node)
	case !s.hasToken:
		return no("the token was deleted; make another token")
	case s.tokenKey != "" && s.tokenKey != r.key: // also when that machine's Node was deleted
		return no("another machine has used the token: a token is for one machine; make another token")
	case s.invalid != "":
		return no("node pool %s can have no nodes: %s", r.pool, s.invalid)
	case s.paused:
		return no("node pool %s is paused", r.pool)
	case s.joined >= s.maxMachines:
		return no("node pool %s is full: %d of %d machines have joined; scale it with `atoll nodepool scale %s`, or take "+
			"a machine out with `atoll node leave`", r.pool, s.joined, s.maxMachines, r.pool)
	}
	return joinDecision{admit: true, makeNode: true, reason: fmt.Sprintf("machine %d of %d of node pool %s", s.joined+1,
		s.maxMachines, r.pool)}
}
