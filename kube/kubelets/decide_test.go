package kubelets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// ask is a certificate request in a few words.
type ask struct {
	user    string
	groups  []string
	serving bool
	cn      string
	org     string // default system:nodes
	ips     []string
	names   []string
}

func (a ask) request(t *testing.T) (request, bool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if a.org == "" {
		a.org = "system:nodes"
	}
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: a.cn, Organization: []string{a.org}}, DNSNames: a.names,
	}
	for _, ip := range a.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	spec := certificatesv1.CertificateSigningRequestSpec{
		Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		Username: a.user, Groups: a.groups, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
	if a.serving {
		spec.SignerName, spec.Usages[1] = certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth
	}
	return read(&certificatesv1.CertificateSigningRequest{Spec: spec})
}

func TestOnlyRequestsForTheRequestersOwnNodeAreApproved(t *testing.T) {
	const token, a, b = "system:bootstrap:abcdef", "system:node:workers-0", "system:node:workers-1"
	const longer, masters = "system:node:workers2-0", "system:masters"
	forOne := []string{"system:bootstrappers", "system:bootstrappers:atoll:node:workers-0"}
	forPool := []string{"system:bootstrappers", "system:bootstrappers:atoll:pool:workers"}
	nodes := []string{"system:nodes"}
	serves := func(cn string, ips ...string) ask {
		return ask{user: a, groups: nodes, cn: cn, serving: true, ips: ips}
	}
	named := func(name string) ask {
		return ask{user: a, groups: nodes, cn: a, serving: true, names: []string{name}}
	}
	here := node{exists: true, addresses: []string{"10.0.0.16", "workers-0"}}
	taken := node{exists: true, addresses: here.addresses, rival: "workers-1"}
	for name, c := range map[string]struct {
		ask  ask
		node node
		want verdict
	}{
		"a token for this node":               {ask{user: token, groups: forOne, cn: a}, node{}, approve},
		"a token for this node, which exists": {ask{user: token, groups: forOne, cn: a}, here, approve},
		"a token for another node":            {ask{user: token, groups: forOne, cn: b}, node{}, deny},
		"a token for the pool":                {ask{user: token, groups: forPool, cn: a}, node{}, approve},
		"a token for the pool, existing node": {ask{user: token, groups: forPool, cn: a}, here, deny},
		"a token for a pool of a longer name": {ask{user: token, groups: forPool, cn: longer}, node{}, deny},
		"a token for the pool, no node's name": {ask{user: token, groups: forPool, cn: "system:node:workers-"}, node{},
			deny},
		"a token asks for masters": {ask{user: token, groups: forOne, cn: a, org: masters}, node{}, deny},
		"a token asks for a user":  {ask{user: token, groups: forOne, cn: "admin"}, node{}, deny},
		"a token asks for a serving certificate": {ask{user: token, groups: forOne, cn: a, serving: true,
			ips: []string{"10.0.0.16"}}, here, deny},
		"a client certificate with an address": {ask{user: token, groups: forOne, cn: a,
			ips: []string{"10.0.0.16"}}, node{}, deny},
		"a node renews":                          {ask{user: a, groups: nodes, cn: a}, here, approve},
		"a deleted node renews":                  {ask{user: a, groups: nodes, cn: a}, node{}, wait},
		"a node asks for another node's":         {ask{user: a, groups: nodes, cn: b}, here, deny},
		"a node serves at its address":           {serves(a, "10.0.0.16"), here, approve},
		"a node serves at its name":              {named("workers-0"), here, approve},
		"a node serves at a foreign address":     {serves(a, "10.0.0.16", "127.0.0.1"), here, wait},
		"a node serves at a foreign name":        {named("kubernetes"), here, wait},
		"a node takes another node's address":    {serves(a, "10.0.0.16"), taken, deny},
		"a node serves for another node":         {serves(b, "10.0.0.16"), here, deny},
		"a node serves at no address, no name":   {serves(a), here, deny},
		"a node's address is not known yet":      {serves(a, "10.0.0.16"), node{exists: true}, wait},
		"a node that does not exist would serve": {serves(a, "10.0.0.16"), node{}, wait},
	} {
		t.Run(name, func(t *testing.T) {
			r, ours := c.ask.request(t)
			if !ours {
				t.Fatal("the request is not decided about")
			}
			if d := decide(r, c.node); d.verdict != c.want {
				t.Errorf("got %d (%s), want %d", d.verdict, d.message, c.want)
			}
		})
	}
}

func TestRequestsOfOthersAreLeftAlone(t *testing.T) {
	for name, a := range map[string]ask{
		"an administrator":                 {user: "admin", groups: []string{"system:masters"}},
		"a token of the customer's":        {user: "system:bootstrap:abcdef", groups: []string{"system:bootstrappers"}},
		"a user called like a node":        {user: "system:node:workers-0", groups: []string{"customers"}},
		"a user in the group of a token's": {user: "eve", groups: []string{"system:bootstrappers:atoll:node:workers-0"}},
	} {
		a.cn = "system:node:workers-0"
		if r, ours := a.request(t); ours {
			t.Errorf("%s: the request %+v is decided about", name, r)
		}
	}
}
