package pki

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A party is a process of the region in a bubble, which runs until the test ends it.
type party struct {
	*Identity
	o   IdentityOptions
	end func()
}

// startParty starts a process.
func startParty(t *testing.T, o IdentityOptions) *party {
	t.Helper()
	p := &party{Identity: open(t, o), o: o}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	if o.Name.IsService() {
		p.ServerTLS(CertificateRequired) // so that it follows the revocation list
	}
	p.end = func() { cancel(); running.Wait() }
	return p
}

// side returns what decides about a meeting on the side of a party: the issuing CA of its certificate, the roots that
// it trusts, and those whose lists it has.
func (p *party) side() string {
	chain := *p.chain.Load()
	p.guard.mu.Lock()
	defer p.guard.mu.Unlock()
	return fmt.Sprint(chain[0].AuthorityKeyId, p.trust.Load().fingerprints(), slices.Sorted(maps.Keys(p.guard.issuers)))
}

// A meeting is a pair of sides, the server's first.
type meeting [2]string

// meet connects every party as a client with every server, and reports what does not work. It leaves out a pair of
// sides that has met before, and records the others in met; nil records nothing.
func meet(t *testing.T, when string, parties map[Name]*party, met map[meeting]bool) {
	t.Helper()
	for serverName, server := range parties {
		if !serverName.IsService() {
			continue
		}
		for name, client := range parties {
			pair := meeting{server.side(), client.side()}
			if met[pair] {
				continue
			}
			if met != nil {
				met[pair] = true
			}
			got, err := handshake(t, server.ServerTLS(CertificateRequired), client.ClientTLS(serverName.Service()))
			if err != nil || got != name {
				t.Errorf("%s: %s at %s: %q %v", when, name, serverName, got, err)
			}
		}
	}
}

// rootOf returns the root of the certificate of an identity.
func rootOf(t *testing.T, id *Identity) *x509.Certificate {
	t.Helper()
	_, chain, err := verifyClient(*id.chain.Load(), id.trust.Load().pool, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return chain[len(chain)-1]
}

// trusts reports whether an identity trusts exactly these roots.
func trusts(id *Identity, roots ...*x509.Certificate) bool {
	return slices.EqualFunc(id.trust.Load().roots, roots, (*x509.Certificate).Equal)
}

// waiting returns the names that keep a rotation from its next step.
func waiting(t *testing.T, ca *CA) (names []Name) {
	t.Helper()
	status, err := ca.Status()
	if err != nil || status.Rotation == nil {
		t.Fatalf("%+v %v", status, err)
	}
	for _, h := range status.Rotation.Waiting {
		names = append(names, h.Name)
	}
	return names
}

// rotateAll rotates the root of a CA whose parties run. All of them meet before it, right after each step, and when all
// have noticed it; in each minute between, those meet of whom one has changed sides. It ends with the parties that have
// run on, and those that it has restarted from their files.
func rotateAll(t *testing.T, ca *CA, parties map[Name]*party) {
	t.Helper()
	first := ca.Certificate()
	met := map[meeting]bool{}
	pass := func(when string) { // each party calls the signing service in this time
		for minute := range int(confirmEvery/time.Minute) + 1 {
			wait(time.Minute)
			meet(t, fmt.Sprintf("%s, minute %d", when, minute+1), parties, met)
		}
		meet(t, when, parties, nil)
	}
	step := func(name string, do func(RotationOptions) error) {
		t.Helper()
		if err := do(RotationOptions{By: "cli:test"}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		meet(t, "right after "+name, parties, nil)
	}
	wait(time.Minute)
	meet(t, "before", parties, nil)
	step("prepare", ca.PrepareRoot)
	next := ca.roots().next
	if got, all := waiting(t, ca), slices.Sorted(maps.Keys(parties)); !slices.Equal(got, all) {
		t.Errorf("waiting at first: %v, want %v", got, all)
	}
	if err := ca.CompleteRoot(RotationOptions{}); !errors.Is(err, ErrRootInUse) || !strings.Contains(err.Error(),
		"edge-7") {
		t.Errorf("completed too early: %v", err)
	}
	if err := ca.RetireRoot(RotationOptions{}); err == nil {
		t.Error("retired before it was completed")
	}
	pass("prepared")
	for name, p := range parties {
		if !trusts(p.Identity, first, next) || !rootOf(t, p.Identity).Equal(first) {
			t.Errorf("%s prepared: trusts %v, is below %v", name, p.trust.Load().fingerprints(), rootOf(t, p.Identity).Subject)
		}
	}
	if got := waiting(t, ca); len(got) > 0 {
		t.Errorf("waiting after a while: %v", got)
	}
	step("complete", ca.CompleteRoot)
	if got := waiting(t, ca); len(got) != len(parties) {
		t.Errorf("waiting when completed: %v", got)
	}
	if err := ca.RetireRoot(RotationOptions{}); !errors.Is(err, ErrRootInUse) || !strings.Contains(err.Error(), "edge-7") {
		t.Errorf("retired too early: %v", err)
	}
	for name, p := range parties { // some with the next root's certificates, some still with the present root's
		if name == "edge-7" || name == "system:broker" {
			if err := p.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.wakeConfirm()
		}
	}
	meet(t, "half renewed", parties, nil)
	pass("completed")
	for name, p := range parties {
		if !rootOf(t, p.Identity).Equal(next) {
			t.Errorf("%s completed: is below %v", name, rootOf(t, p.Identity).Subject)
		}
	}
	step("retire", ca.RetireRoot)
	if ca.Certificate() == first || !ca.Certificate().Equal(next) {
		t.Errorf("the root is %v", ca.Certificate().Subject)
	}
	// A server misses the list of the retired root at once, and asks for the roots. The root of an earlier Atoll has none.
	wait(10 * time.Second)
	for name, p := range parties {
		if name.IsService() && permitsIssuers(first) && !trusts(p.Identity, next) {
			t.Errorf("%s retired, after 10 s: trusts %v", name, p.trust.Load().fingerprints())
		}
	}
	pass("retired")
	for name, p := range parties {
		if !trusts(p.Identity, next) {
			t.Errorf("%s retired: trusts %v", name, p.trust.Load().fingerprints())
		}
	}
	for name, p := range parties {
		p.end()
		p.o.TokenFile = ""
		parties[name] = startParty(t, p.o)
		if !trusts(parties[name].Identity, next) {
			t.Errorf("%s restarted: trusts %v", name, p.trust.Load().fingerprints())
		}
	}
	wait(time.Minute)
	meet(t, "restarted", parties, nil)
	if status, err := ca.Status(); err != nil || status.Rotation != nil || len(status.Issuing) != 2 ||
		len(status.Warnings) > 0 {
		t.Errorf("%+v %v", status, err)
	}
}

// The root is rotated while processes meet each other, and nobody joins again or fails once. The processes have only
// the first root in their CA file to the end.
func TestI7TheRootIsRotatedWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		l, stop := bubbleCA(t, ca)
		defer stop()
		file := filepath.Join(t.TempDir(), "ca.pem")
		writeFile(t, file, ca.CertPEM())
		parties := map[Name]*party{}
		for _, name := range []Name{"system:broker", "system:maestro", "edge-7", "edge-8"} {
			o := options(t, ca, "https://localhost:1", name)
			o.dial, o.CAFile = l.dial, file
			parties[name] = startParty(t, o)
		}
		rotateAll(t, ca, parties)
		// And once more: the second root vouches for the third, and the CA file still has the first one.
		rotateAll(t, ca, parties)
		for _, p := range parties {
			p.end()
		}
	})
}

// A region whose root an earlier Atoll has made gets issuing CAs by a rotation, and nothing joins again.
func TestI7ARegionOfAnEarlierReleaseGetsIssuingCAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newEarlierRegion(t)
		names := []Name{"system:broker", "system:maestro", "edge-7"}
		for i, name := range names {
			r.enrol(name, 1<<40+1+int64(i))
		}
		ca := openCAIn(t, filepath.Join(r.dir, "ca"))
		l, stop := bubbleCA(t, ca)
		defer stop()
		file := filepath.Join(t.TempDir(), "ca.pem")
		writeFile(t, file, ca.CertPEM())
		parties := map[Name]*party{}
		for _, name := range names {
			parties[name] = startParty(t, IdentityOptions{Dir: filepath.Join(r.dir, string(name)), Name: name,
				URL: "https://localhost:1", CAFile: file, dial: l.dial, Logger: slog.New(slog.DiscardHandler)})
		}
		rotateAll(t, ca, parties)
		for name, p := range parties {
			if n := len(p.current.Load().Certificate); n != 2 {
				t.Errorf("%s sends %d certificates", name, n)
			}
			p.end()
		}
		if status, err := ca.Status(); err != nil || status.Root.SignsAll {
			t.Errorf("%+v %v", status, err)
		}
		takeKey(t, ca)
	})
}

// Two peers verify each other whichever steps they have taken, except one that knows only one root and one whose
// certificate is below the other. CompleteRoot and RetireRoot keep these from meeting.
func TestI7PeersOfEveryStepOfARotation(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	join := func() map[Name]*Identity {
		ids := map[Name]*Identity{}
		for _, name := range []Name{"system:broker", "edge-7"} {
			ids[name] = open(t, options(t, ca, url, name))
		}
		return ids
	}
	confirmAll := func(ids map[Name]*Identity) {
		t.Helper()
		for _, id := range ids {
			if err := confirm(t, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := ca.Certificate()
	onlyFirst := join()
	onlyFirst["system:broker"].ServerTLS(CertificateRequired)
	knowCRL(t, ca, onlyFirst["system:broker"])
	if err := ca.PrepareRoot(RotationOptions{}); err != nil {
		t.Fatal(err)
	}
	next := ca.roots().next
	before := join()
	confirmAll(before)
	for name := range onlyFirst { // as if they were revoked, or had expired
		rec, err := readRecord[issuedRecord](ca.dir, issuedDir, name)
		if err != nil {
			t.Fatal(err)
		}
		rec.Certificates = rec.Certificates[1:]
		if err := writeRecord(ca.dir, issuedDir, name, rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := ca.CompleteRoot(RotationOptions{}); err != nil {
		t.Fatal(err)
	}
	after := join()
	onlyNext := map[Name]*Identity{}
	for name, id := range after {
		copied := &Identity{o: id.o, guard: newGuard(), wake: make(chan struct{}, 1)}
		copied.trust.Store(newTrust([]*x509.Certificate{next}, nil))
		copied.chain.Store(id.chain.Load())
		copied.current.Store(id.current.Load())
		onlyNext[name] = copied
	}
	type kind struct {
		name      string
		ids       map[Name]*Identity
		below     *x509.Certificate
		trustsToo []*x509.Certificate
	}
	kinds := []kind{
		{"only the first root", onlyFirst, first, []*x509.Certificate{first}},
		{"both, below the first", before, first, []*x509.Certificate{first, next}},
		{"both, below the next", after, next, []*x509.Certificate{first, next}},
		{"only the next root", onlyNext, next, []*x509.Certificate{next}},
	}
	for _, s := range kinds {
		server := s.ids["system:broker"]
		if !trusts(server, s.trustsToo...) || !rootOfChain(server).Equal(s.below) {
			t.Fatalf("%s: trusts %v, is below %v", s.name, server.trust.Load().fingerprints(), rootOfChain(server).Subject)
		}
		if len(s.trustsToo) > 1 || s.below.Equal(next) {
			knowCRL(t, ca, server)
		}
		for _, c := range kinds {
			want := hasCert(s.trustsToo, c.below) && hasCert(c.trustsToo, s.below)
			name, err := handshake(t, server.ServerTLS(CertificateRequired), c.ids["edge-7"].ClientTLS("broker"))
			if (err == nil && name == "edge-7") != want {
				t.Errorf("server %s, client %s: %q %v, want %v", s.name, c.name, name, err, want)
			}
		}
	}
}

// writeFile writes a file.
func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// rootOfChain returns the root of an identity's certificate, whether the identity trusts it or not.
func rootOfChain(id *Identity) *x509.Certificate {
	chain := *id.chain.Load()
	for _, root := range id.trust.Load().roots {
		if chain[len(chain)-1].CheckSignatureFrom(root) == nil {
			return root
		}
	}
	return chain[len(chain)-1]
}
