package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stolen returns the issuing CA of a role, as somebody has it who has copied its key.
func stolen(t *testing.T, ca *CA, role Role) issuer {
	t.Helper()
	i, err := ca.issuerOf(role, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// forge makes a certificate for a name with every usage and name that a process could have. between are CAs between it
// and the root. change may alter it.
func forge(t *testing.T, by issuer, name Name, between []*x509.Certificate,
	change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	serial, err := newSerial()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: string(name)},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "broker", "platform", "pki"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return *newTLSCertificate(append([]*x509.Certificate{leaf}, between...), key)
}

// client returns the configuration of a client with a forged certificate.
func client(ca *CA, cert tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), ServerName: "broker",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
}

// Whoever has the key of one issuing CA has no identity of the other's kind at any server, in no chain.
func TestI7AStolenIssuingKeyProvesNamesOfItsRoleOnly(t *testing.T) {
	ca := openCA(t)
	server := open(t, options(t, ca, serveCA(t, ca), "system:broker"))
	knowCRL(t, ca, server)
	agents, services := stolen(t, ca, Agents), stolen(t, ca, Services)
	below := func(i issuer) []*x509.Certificate { return []*x509.Certificate{i.cert} }

	// A CA below the agents' one that calls itself the services' one.
	key, _ := newKey()
	sub := issuer{role: Services, key: key}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7),
		Subject: services.cert.Subject, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true}, agents.cert, key.Public(), agents.key)
	if err == nil {
		sub.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cert tls.Certificate
		want Name // "": refused
	}{
		"an agent of the agents' CA":    {forge(t, agents, "edge-7", below(agents), nil), "edge-7"},
		"a service of the services' CA": {forge(t, services, "system:clm", below(services), nil), "system:clm"},
		"a service of the agents' CA":   {forge(t, agents, "system:platform", below(agents), nil), ""},
		"an operator of the agents' CA": {forge(t, agents, "system:operator", below(agents), nil), ""},
		"an agent of the services' CA":  {forge(t, services, "edge-7", below(services), nil), ""},
		"a service that sends both CAs": {forge(t, agents, "system:clm", append(below(services), agents.cert), nil), ""},
		"a service that says its unit": {forge(t, agents, "system:clm", below(agents), func(c *x509.Certificate) {
			c.Subject.OrganizationalUnit = []string{string(Services)}
		}), ""},
		"two names": {forge(t, agents, "", below(agents), func(c *x509.Certificate) {
			c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{
				{Type: []int{2, 5, 4, 3}, Value: "edge-7"}, {Type: []int{2, 5, 4, 3}, Value: "system:platform"}}
		}), ""},
		"a CA below the agents' CA": {forge(t, sub, "system:clm", []*x509.Certificate{sub.cert, agents.cert}, nil), ""},
		"a CA itself": {forge(t, agents, "edge-7", below(agents), func(c *x509.Certificate) {
			c.IsCA = true
		}), ""},
		"the agents' CA itself": {*newTLSCertificate(below(agents), agents.key), ""},
		"no issuing CA sent":    {forge(t, agents, "edge-7", nil, nil), ""},
	} {
		for _, rule := range []ClientCertificate{CertificateRequired, CertificateOptional} {
			got, err := handshake(t, server.ServerTLS(rule), client(ca, c.cert))
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%s: %q %v, want %q", name, got, err, c.want)
			}
		}
	}
}

// The key of the agents' issuing CA makes no server that anybody believes, neither a process of the region nor a client
// that has the root only.
func TestI7AStolenAgentsKeyIsNoServer(t *testing.T) {
	ca := openCA(t)
	agent := open(t, options(t, ca, serveCA(t, ca), "edge-7"))
	for role, believed := range map[Role]bool{Agents: false, Services: true} {
		by := stolen(t, ca, role)
		cert := forge(t, by, "system:broker", []*x509.Certificate{by.cert}, nil)
		server := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()}
		if _, err := handshake(t, server, agent.ClientTLS("broker")); (err == nil) != believed {
			t.Errorf("a server of the %s' CA: %v", role, err)
		}
		between := x509.NewCertPool()
		between.AddCert(by.cert)
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), Intermediates: between,
			DNSName: "platform"}); (err == nil) != believed {
			t.Errorf("for a customer's client: %v", err)
		}
	}
}

// The signing service renews for no forged certificate, and gives its audit to none.
func TestI7AStolenAgentsKeyRenewsNoService(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	by := stolen(t, ca, Agents)
	for name, want := range map[Name]int{"edge-7": http.StatusOK, "system:platform": http.StatusForbidden,
		"system:operator": http.StatusForbidden} {
		cert := forge(t, by, name, []*x509.Certificate{by.cert}, nil)
		thief := &Identity{o: IdentityOptions{Name: name}}
		thief.use(cert.PrivateKey.(*ecdsa.PrivateKey), []*x509.Certificate{cert.Leaf, by.cert})
		key, _ := newKey()
		csr, err := encodeCSR(key, name)
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := post(t, url, ca, thief, SignRequest{CSR: string(csr)}); status != want {
			t.Errorf("%s: %d %s", name, status, answer)
		}
		if name != "system:platform" {
			continue
		}
		thief.trust.Store(newTrust(ca.roots().all(), nil))
		if status, _ := getAudit(t, url, thief, "0"); status != http.StatusForbidden {
			t.Errorf("%s reads the audit: %d", name, status)
		}
	}
}

// The agents' issuing CA cannot lift a revocation, nor can the root's own list in the place of the first.
func TestI7OnlyTheServicesCASignsTheList(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	server, fresh := open(t, options(t, ca, url, "system:broker")), open(t, options(t, ca, url, "system:clm"))
	knowCRL(t, ca, server)
	list := func(i issuer) []byte {
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{ThisUpdate: time.Now(),
			NextUpdate: time.Now().Add(time.Hour), Number: big.NewInt(time.Now().Add(time.Hour).UnixMilli())}, i.cert, i.key)
		if err != nil {
			t.Fatal(err)
		}
		return append(pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}), encodeCert(i.cert.Raw)...)
	}
	root, err := os.ReadFile(filepath.Join(ca.dir, issuingDir, rootListFile))
	if err != nil {
		t.Fatal(err)
	}
	services := list(stolen(t, ca, Services))
	for name, data := range map[string][]byte{
		"the agents' list":                append(list(stolen(t, ca, Agents)), root...),
		"the agents', and the services'":  append(append(list(stolen(t, ca, Agents)), services...), root...),
		"the root's list":                 append(root, encodeCert(ca.Certificate().Raw)...),
		"a list without the root's":       services,
		"a list without its certificates": services[:strings.Index(string(services), "-----BEGIN CERT")],
	} {
		for holder, id := range map[string]*Identity{"that knows a list": server, "that knows none": fresh} {
			if accepted, err := id.acceptCRL(t.Context(), data); accepted || err == nil {
				t.Errorf("a server %s accepts %s", holder, name)
			}
		}
	}
	if accepted, err := server.acceptCRL(t.Context(), append(slices.Clone(services), root...)); !accepted || err != nil {
		t.Errorf("the services' list: %v %v", accepted, err)
	}
}

// With the root's key issuing CAs are renewed by themselves, and files of ended ones do not collect.
func TestIssuingCAsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		first := stolen(t, ca, Agents)
		const look = 5 // days; each look signs lists
		for day := 0; day < 3*365; day += look {
			wait(look * 24 * time.Hour)
			if _, _, err := ca.CRL(); err != nil {
				t.Fatalf("day %d: %v", day, err)
			}
			have, err := ca.readIssuers()
			if err != nil || len(have.intact) > 4 {
				t.Fatalf("day %d: %d issuing CAs, %v", day, len(have.intact), err)
			}
			for _, role := range Roles {
				if left := time.Until(have.signer(role, time.Now()).cert.NotAfter); left < issuingValidity/3-(look*24+1)*time.Hour {
					t.Fatalf("day %d: the issuing CA of %s ends in %s", day, role, left)
				}
			}
		}
		if stolen(t, ca, Agents).key.Equal(first.key) {
			t.Error("a renewed issuing CA has the old key")
		}
	})
}

// The signing service itself has a certificate of the issuing CA that signs, also after that of before was revoked. Its
// clients know no list of revoked issuing CAs. Without an issuing CA it serves on with the certificate that it has.
func TestTheSigningServiceTakesACertificateOfTheNextIssuingCA(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	issuerOfService := func() *x509.Certificate {
		t.Helper()
		conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{MinVersion: tls.VersionTLS13,
			RootCAs: ca.Pool(), ServerName: pkiServer})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[1]
	}
	first := issuerOfService()
	if !issuerOfService().Equal(first) {
		t.Error("another issuing CA without a reason")
	}
	if err := ca.Issue(IssueOptions{Revoke: []Role{Services}}); err != nil {
		t.Fatal(err)
	}
	next := issuerOfService()
	if next.Equal(first) || !next.Equal(stolen(t, ca, Services).cert) {
		t.Errorf("its certificate is of %q", next.Subject.CommonName)
	}
	path, _ := readIssuerFile(t, ca, Services)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if !issuerOfService().Equal(next) {
		t.Error("another issuing CA after a removal")
	}
}
