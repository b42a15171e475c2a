package kubelets

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/apis/certificates"
)

// Names of Kubernetes, and the groups of bootstrap tokens that hosting makes.
const (
	bootstrapUser = "system:bootstrap:"
	nodeUser      = "system:node:"
	nodesGroup    = "system:nodes"

	// oneNode comes before the name of the only node that the token's bearer may be, onePool before the
	// first part of the names of a pool's nodes, which "-" follows.
	oneNode = "system:bootstrappers:atoll:node:"
	onePool = "system:bootstrappers:atoll:pool:"
)

// request is a certificate request of a kubelet, or of the bearer of a bootstrap token.
type request struct {
	user    string
	groups  []string
	serving bool // for a serving certificate; otherwise a client's
	invalid error
	name    string // of the node in the common name
	csr     *x509.CertificateRequest
}

// node is the Node that a request names.
type node struct {
	exists    bool
	addresses []string // names too
	rival     string   // another Node that has one of the request's addresses
}

type verdict int

const (
	wait verdict = iota // until the Node changes
	approve
	deny
)

type decision struct {
	verdict verdict
	message string
}

// read returns a request, and false when the package has nothing to do with it.
func read(csr *certificatesv1.CertificateSigningRequest) (r request, ours bool) {
	r = request{user: csr.Spec.Username, groups: csr.Spec.Groups}
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
	case certificatesv1.KubeletServingSignerName:
		r.serving = true
	default:
		return request{}, false
	}
	joining := strings.HasPrefix(r.user, bootstrapUser) && slices.ContainsFunc(r.groups, func(group string) bool {
		return strings.HasPrefix(group, oneNode) || strings.HasPrefix(group, onePool)
	})
	if joined := strings.HasPrefix(r.user, nodeUser) && slices.Contains(r.groups, nodesGroup); !joined && !joining {
		return request{}, false
	}
	if r.csr, r.invalid = certificates.ParseCSR(csr.Spec.Request); r.invalid != nil {
		return r, true
	}
	usages := sets.NewString()
	for _, usage := range csr.Spec.Usages {
		usages.Insert(string(usage))
	}
	if r.serving {
		r.invalid = certificates.ValidateKubeletServingCSR(r.csr, usages)
	} else {
		r.invalid = certificates.ValidateKubeletClientCSR(r.csr, usages)
	}
	if r.invalid == nil {
		r.name = strings.TrimPrefix(r.csr.Subject.CommonName, nodeUser)
	}
	return r, true
}

// decide says whether a request is approved.
func decide(r request, n node) decision {
	switch {
	case r.invalid != nil:
		return decision{deny, "not the request of a kubelet: " + r.invalid.Error()}
	case strings.HasPrefix(r.user, bootstrapUser):
		return decideJoin(r, n)
	case r.user != nodeUser+r.name:
		return decision{deny, fmt.Sprintf("%s may not ask for a certificate of node %s", r.user, r.name)}
	case !n.exists:
		return decision{wait, "there is no Node " + r.name}
	case !r.serving:
		return decision{approve, "a node renews its client certificate"}
	case !n.covers(r):
		return decision{wait, fmt.Sprintf("Node %s does not have all names and addresses of the request", r.name)}
	case n.rival != "":
		return decision{deny, fmt.Sprintf("Node %s has an address of the request", n.rival)}
	}
	return decision{approve, "the names and addresses are those of the Node"}
}

// decideJoin decides about the first certificate of a kubelet, which its bootstrap token asks for.
func decideJoin(r request, n node) decision {
	if r.serving {
		return decision{deny, "a bootstrap token gets no serving certificate"}
	}
	for _, group := range r.groups {
		if name, ok := strings.CutPrefix(group, oneNode); ok && name == r.name {
			return decision{approve, "the bootstrap token is for this node"}
		}
	}
	for _, group := range r.groups {
		pool, ok := strings.CutPrefix(group, onePool)
		if !ok || !strings.HasPrefix(r.name, pool+"-") || len(r.name) == len(pool)+1 {
			continue
		}
		if n.exists {
			return decision{deny, fmt.Sprintf("there is a Node %s: delete it before another machine takes its name",
				r.name)}
		}
		return decision{approve, "the bootstrap token is for nodes of this pool"}
	}
	return decision{deny, fmt.Sprintf("the bootstrap token is not for node %s", r.name)}
}

// covers reports whether the Node has all names and addresses of a request.
func (n node) covers(r request) bool {
	for _, name := range r.csr.DNSNames {
		if !slices.Contains(n.addresses, name) {
			return false
		}
	}
	for _, ip := range r.csr.IPAddresses {
		if !slices.Contains(n.addresses, ip.String()) {
			return false
		}
	}
	return true
}
