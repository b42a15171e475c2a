package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// makeRoot makes a root that belongs to nobody.
func makeRoot(t *testing.T) rootPair {
	t.Helper()
	_, pair, err := newRoot()
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// A process takes a root only when one that it trusts vouches for it by a cross certificate. Nothing that the key of
// an issuing CA or of a process can sign is one.
func TestI7OnlyATrustedRootVouchesForAnother(t *testing.T) {
	ca, first, next := rotated(t, RootCompleted)
	services := stolen(t, ca, Services)
	evil, other := makeRoot(t), makeRoot(t)
	firstKey, err := ca.rootKey(first, nil)
	if err != nil {
		t.Fatal(err)
	}
	cross := func(by *x509.Certificate, key any, of rootPair, change func(*x509.Certificate)) *x509.Certificate {
		t.Helper()
		serial, _ := newSerial()
		tmpl := &x509.Certificate{SerialNumber: serial, Subject: of.cert.Subject, NotBefore: of.cert.NotBefore,
			NotAfter: of.cert.NotAfter, KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLen: 1}
		if change != nil {
			change(tmpl)
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, by, &of.key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// rootOfIssuer is a root with the name and the key of the issuing CA.
	ofIssuer := rootPair{services.key, services.cert}
	rootOfIssuer := rootPair{services.key, cross(services.cert, services.key, ofIssuer, nil)}
	unnamed := rootPair{services.key, cross(&x509.Certificate{Subject: pkix.Name{CommonName: "root"}}, services.key,
		ofIssuer, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "root"} })}
	crosses, err := ca.crosses()
	if err != nil {
		t.Fatal(err)
	}
	trusting := func(roots ...*x509.Certificate) *trust { return newTrust(roots, nil) }
	notCA := func(c *x509.Certificate) { c.IsCA, c.MaxPathLen = false, 0 }
	noLength := func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = 0, true }
	signed := func(c *x509.Certificate) []*x509.Certificate { return []*x509.Certificate{evil.cert, c} }
	byIssuer := cross(services.cert, services.key, evil, nil)
	otherKey, otherName := rootPair{other.key, evil.cert}, rootPair{evil.key, other.cert}
	type certs = []*x509.Certificate
	for name, c := range map[string]struct {
		have  *trust
		certs certs
		want  bool
	}{
		"the same":                            {trusting(first), certs{first}, true},
		"the next root with its cross":        {trusting(first), append(certs{first, next}, crosses...), true},
		"the next root alone with its cross":  {trusting(first), append(certs{next}, crosses...), true},
		"the next root without its cross":     {trusting(first), certs{first, next}, false},
		"back, as before a preparation":       {trusting(first, next), certs{first}, true},
		"a retired root, by the one after it": {trusting(next), append(certs{first, next}, crosses...), false},
		"no root":                             {trusting(first), crosses, false},
		"a root of somebody":                  {trusting(first), certs{first, evil.cert}, false},
		"and a good one":                      {trusting(first), append(certs{first, next, evil.cert}, crosses...), false},
		"by itself":                           {trusting(first), signed(cross(evil.cert, evil.key, evil, nil)), false},
		"by another stranger":                 {trusting(first), signed(cross(other.cert, other.key, evil, nil)), false},
		"by an issuing CA":                    {trusting(next), certs{next, evil.cert, byIssuer}, false},
		"by an issuing CA, sent along":        {trusting(next), certs{next, evil.cert, services.cert, byIssuer}, false},
		"an issuing CA as a root, ignored":    {trusting(next), certs{next, rootOfIssuer.cert, services.cert}, true},
		"an issuing CA's key as a root":       {trusting(next), certs{next, unnamed.cert, services.cert}, false},
		"the issuing CA itself":               {trusting(next), certs{services.cert}, false},
		"a cross for another key":             {trusting(first), signed(cross(first, firstKey, otherKey, nil)), false},
		"a cross for another name":            {trusting(first), signed(cross(first, firstKey, otherName, nil)), false},
		"by a certificate of no CA":           {trusting(first), signed(cross(first, firstKey, evil, notCA)), false},
		"by one like an issuing CA's":         {trusting(first), signed(cross(first, firstKey, evil, noLength)), false},
	} {
		got, err := c.have.follow(c.certs)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if c.want && got != nil && (len(got.roots) == 0 || hasCert(got.roots, evil.cert) ||
			hasCert(got.roots, rootOfIssuer.cert)) {
			t.Errorf("%s: trusts %v", name, got.fingerprints())
		}
	}
}

// answer serves a fixed answer to every request, as a signing service with a certificate would.
func answer(t *testing.T, ca *CA, cert *tls.Certificate, body any) string {
	t.Helper()
	s := NewServer(ca)
	if cert != nil {
		now, _ := ca.issuersChanged()
		s.serving, s.servingSince, s.servingRoots = cert, now, ca.roots()
	}
	return serve(t, s, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Error(err)
		}
	}))
}

// Whoever has the key of the services' issuing CA and stands between a process and the signing service gives it no
// root of his own, and takes none from it that it needs. A server that is not the signing service is not listened
// to.
func TestI7AProcessTakesRootsFromTheSigningServiceOnly(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	o := options(t, ca, url, "edge-7")
	id := open(t, o)
	first := ca.Certificate()
	if err := ca.PrepareRoot(RotationOptions{}); err != nil {
		t.Fatal(err)
	}
	good, err := ca.trustPEM()
	if err != nil {
		t.Fatal(err)
	}
	services, agents := stolen(t, ca, Services), stolen(t, ca, Agents)
	pkiCert := forge(t, services, "system:pki", []*x509.Certificate{services.cert}, nil)
	brokerCert := forge(t, services, "system:broker", []*x509.Certificate{services.cert}, nil)
	agentsCert := forge(t, agents, "system:pki", []*x509.Certificate{agents.cert}, nil)
	evil := makeRoot(t)
	foreign := openCA(t)
	withEvil := good + string(encodeCert(evil.cert.Raw))
	for name, server := range map[string]string{
		"the stolen key, with another root": answer(t, ca, &pkiCert, ConfirmResponse{Roots: withEvil}),
		"the stolen key, with another root alone": answer(t, ca, &pkiCert, ConfirmResponse{Roots: string(encodeCert(
			evil.cert.Raw))}),
		"the stolen key, without the root of the process": answer(t, ca, &pkiCert, ConfirmResponse{Roots: strings.TrimPrefix(
			good, string(encodeCert(first.Raw)))}),
		"another service":          answer(t, ca, &brokerCert, ConfirmResponse{Roots: good}),
		"the agents' stolen key":   answer(t, ca, &agentsCert, ConfirmResponse{Roots: good}),
		"the CA of another region": answer(t, foreign, nil, ConfirmResponse{Roots: good}),
	} {
		id.o.URL = server
		err := confirm(t, id)
		if err == nil || !trusts(id, first) || isFile(filepath.Join(o.Dir, trustFile)) {
			t.Errorf("%s: %v, trusts %v", name, err, id.trust.Load().fingerprints())
		}
	}
	id.o.URL = url
	if err := confirm(t, id); err != nil || !trusts(id, first, ca.roots().next) {
		t.Errorf("the signing service: %v, trusts %v", err, id.trust.Load().fingerprints())
	}
}

// Stored roots count only if they follow from the CA file. An operator who gives a process the CA of another region
// gets what the CA file says. A damaged file is an error, because the region may have none of the roots in the CA file.
func TestStoredRootsFollowFromTheCAFile(t *testing.T) {
	ca, first, next := rotated(t, RootPrepared)
	o := options(t, ca, serveCA(t, ca), "edge-7")
	o.CAFile = filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, o.CAFile, encodeCert(first.Raw))
	id := open(t, o)
	if !trusts(id, first, next) {
		t.Fatalf("enrolled: trusts %v", id.trust.Load().fingerprints())
	}
	path := filepath.Join(o.Dir, trustFile)
	stored, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := openCA(t)
	crosses, err := ca.crosses()
	if err != nil {
		t.Fatal(err)
	}
	load := func(file, stored []byte) (*Identity, error) {
		t.Helper()
		writeFile(t, o.CAFile, file)
		writeFile(t, path, stored)
		fresh := &Identity{o: id.o, guard: newGuard()}
		if err := fresh.loadAnchors(t.Context()); err != nil {
			t.Fatal(err)
		}
		return fresh, fresh.loadTrust()
	}
	retired := newTrust([]*x509.Certificate{next}, crosses).encode()
	for name, c := range map[string]struct {
		file, stored []byte
		want         []*x509.Certificate
	}{
		"as stored":                    {encodeCert(first.Raw), stored, []*x509.Certificate{first, next}},
		"the first root retired":       {encodeCert(first.Raw), retired, []*x509.Certificate{next}},
		"retired, and both are given":  {ca.CertPEM(), retired, []*x509.Certificate{next}},
		"retired, and the next given":  {encodeCert(next.Raw), retired, []*x509.Certificate{next}},
		"the CA of another region":     {other.CertPEM(), stored, []*x509.Certificate{other.Certificate()}},
		"stored roots without a cross": {encodeCert(first.Raw), ca.CertPEM(), []*x509.Certificate{first}},
	} {
		if got, err := load(c.file, c.stored); err != nil || !trusts(got, c.want...) {
			t.Errorf("%s: %v, trusts %v", name, err, got.trust.Load().fingerprints())
		}
	}
	changed := slices.Clone(retired)
	changed[len(encodeCert(next.Raw))+100] = '!'
	for name, damaged := range map[string][]byte{"empty": nil, "cut": stored[:len(stored)/2],
		"cut at the end": retired[:len(retired)-2], "changed": changed, "with more": append(slices.Clone(retired), "x"...),
		"zeros": make([]byte, 4096)} {
		_, err := load(encodeCert(first.Raw), damaged)
		for _, want := range []string{path, "is damaged", "restore it from a backup", "to " + o.CAFile + " and remove"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q: %v", name, want, err)
			}
		}
	}
	// So is one whose certificates can be parsed, and have one wrong bit, wherever it is; but nobody needs a cross
	// certificate whose root is in the CA file.
	for i := range retired {
		changed := flipped(retired, i, 1<<(i%8))
		if certs, err := parseCertificates(changed); err != nil || !bytes.Equal(encodeChain(certs), changed) {
			continue // as above
		}
		if got, err := load(encodeCert(first.Raw), changed); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Fatalf("byte %d: %v, trusts %v", i, err, got.trust.Load().fingerprints())
		}
	}
	wrong := append(encodeCert(next.Raw), encodeCert(flipped(crosses[0].Raw, len(crosses[0].Raw)-1, 1))...)
	if got, err := load(encodeCert(next.Raw), wrong); err != nil || !trusts(got, next) {
		t.Errorf("a wrong signature that is not needed: %v, trusts %v", err, got.trust.Load().fingerprints())
	}
	if got, err := load(other.CertPEM(), wrong); err != nil || !trusts(got, other.Certificate()) {
		t.Errorf("a wrong signature in another region: %v, trusts %v", err, got.trust.Load().fingerprints())
	}
	// Whoever stays in his region by mistake without its roots is told, too.
	writeFile(t, o.CAFile, other.CertPEM())
	writeFile(t, path, retired)
	o.TokenFile, o.Logger = "", slog.New(slog.DiscardHandler)
	_, err = OpenIdentity(t.Context(), o)
	for _, want := range []string{"the roots in " + path + " are not used",
		"certificates (ca.crt beside the CA) to " + o.CAFile} {
		if !errors.Is(err, ErrNotEnrolled) || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

// flipped returns a copy of data with one byte changed.
func flipped(data []byte, at int, bits byte) []byte {
	data = slices.Clone(data)
	data[at] ^= bits
	return data
}

// Agents that join while two roots are trusted may know the first one, both, or their fingerprints; a pin names all
// roots that a process shall trust, and lets in no other.
func TestAgentsJoinDuringARotation(t *testing.T) {
	for _, phase := range []string{RootPrepared, RootCompleted} {
		t.Run(phase, func(t *testing.T) {
			ca, first, next := rotated(t, phase)
			url := serveCA(t, ca)
			broker := open(t, options(t, ca, url, "system:broker"))
			broker.ServerTLS(CertificateRequired)
			knowCRL(t, ca, broker)
			for name, c := range map[string]struct {
				pin  string
				file []byte // "": fetched
				want string // in the error
			}{
				"the pin of the first root":           {pin: Fingerprint(first)},
				"the pin of the token":                {pin: ca.Pin()},
				"the file of the first root":          {file: encodeCert(first.Raw)},
				"the file of both":                    {file: ca.CertPEM()},
				"the file of both, and both pins":     {pin: ca.Pin(), file: ca.CertPEM()},
				"the file of both, and the first pin": {pin: Fingerprint(first), file: ca.CertPEM()},
				"the pin of another region":           {pin: Fingerprint(makeRoot(t).cert), want: "is not the one"},
			} {
				o := options(t, ca, url, "edge-7")
				o.CAFile = filepath.Join(o.Dir, "ca.pem")
				o.Logger = slog.New(slog.DiscardHandler)
				if c.file != nil {
					writeFile(t, o.CAFile, c.file)
				}
				if c.pin != "" {
					err := PinCA(t.Context(), url, c.pin, o.CAFile)
					if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
						t.Fatalf("%s: %v", name, err)
					}
					if err != nil {
						continue
					}
				}
				agent := open(t, o)
				if !trusts(agent, first, next) {
					t.Errorf("%s: trusts %v", name, agent.trust.Load().fingerprints())
				}
				got, err := handshake(t, broker.ServerTLS(CertificateRequired), agent.ClientTLS("broker"))
				if err != nil || got != "edge-7" {
					t.Errorf("%s: %q %v", name, got, err)
				}
			}
		})
	}
}

// A connection of a client below a root that is withdrawn ends, and none begins that was under way.
func TestI7AWithdrawnRootEndsItsConnections(t *testing.T) {
	ca, first, next := rotated(t, RootPrepared)
	url := serveCA(t, ca)
	server := open(t, options(t, ca, url, "system:broker"))
	addr := listen(t, server)
	knowCRL(t, ca, server)
	agent := open(t, options(t, ca, url, "edge-7"))
	conn, err := dial(t, addr, agent)
	if err != nil {
		t.Fatal(err)
	}
	server.trust.Store(newTrust([]*x509.Certificate{next}, nil))
	if n := server.guard.keepRoots([]*x509.Certificate{next}); n != 1 {
		t.Errorf("%d connections are closed", n)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a connection below a withdrawn root", n)
	}
	chain := append(*agent.chain.Load(), first)
	err = server.guard.admit(conn.NetConn(), chain)
	if err == nil || !strings.Contains(err.Error(), "not trusted any more") {
		t.Errorf("admitted: %v", err)
	}
	if _, err := dial(t, addr, agent); err == nil {
		t.Error("it connects again")
	}
}

// A server never goes back to an older list of revoked issuing CAs, of either root, and takes no bundle without one.
func TestI7TheListsOfBothRootsCount(t *testing.T) {
	ca, first, next := rotated(t, RootCompleted)
	server := open(t, options(t, ca, serveCA(t, ca), "system:broker"))
	server.ServerTLS(CertificateRequired)
	before, _, err := ca.CRL()
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue(IssueOptions{Revoke: []Role{Agents}}); err != nil {
		t.Fatal(err)
	}
	after, _, err := ca.CRL()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.acceptCRL(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	if _, err := server.acceptCRL(t.Context(), before); err == nil {
		t.Error("it goes back to older lists")
	}
	for name, root := range map[string]*x509.Certificate{"first": first, "next": next} {
		list, err := os.ReadFile(rootListPath(ca.dir, root))
		if err != nil {
			t.Fatal(err)
		}
		if without := bytes.Replace(after, list, nil, 1); len(without) == len(after) {
			t.Errorf("the bundle has no list of the %s root", name)
		} else if _, err := server.acceptCRL(t.Context(), without); err == nil {
			t.Errorf("accepted without the list of the %s root", name)
		}
	}
}
