package pki

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func options(t *testing.T, ca *CA, url string, name Name) IdentityOptions {
	t.Helper()
	dir := t.TempDir()
	token, err := ca.CreateToken(name, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return IdentityOptions{Dir: dir, Name: name, URL: url, CAFile: ca.CertFile(), TokenFile: file}
}

func TestAnIdentityEnrolsOnceAndIsVerifiedBothWays(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	server, err := OpenIdentity(t.Context(), options(t, ca, url, "system:maestro"))
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, ca, url, "management-01")
	agent, err := OpenIdentity(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.TokenFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the used token is still there: %v", err)
	}
	if !Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled is false for an enrolled directory")
	}
	if again, err := OpenIdentity(t.Context(), o); err != nil || !bytes.Equal(again.current.Load().Certificate[0],
		agent.current.Load().Certificate[0]) {
		t.Errorf("opened again: %v", err)
	}

	knowCRL(t, ca, server)
	knowCRL(t, ca, agent)
	peer, err := handshake(t, server.ServerTLS(CertificateRequired), agent.ClientTLS("maestro"))
	if err != nil || peer != "management-01" {
		t.Errorf("handshake: peer %q, %v", peer, err)
	}
	if _, err := handshake(t, server.ServerTLS(CertificateRequired), agent.ClientTLS("platform")); err == nil {
		t.Error("a client that wants platform is content with maestro")
	}
	if _, err := handshake(t, agent.ServerTLS(CertificateRequired), server.ClientTLS("maestro")); err == nil {
		t.Error("an agent's certificate serves")
	}
	other := openCA(t)
	stranger, err := OpenIdentity(t.Context(), options(t, other, serveCA(t, other), "system:maestro"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, server.ServerTLS(CertificateRequired), stranger.ClientTLS("maestro")); err == nil {
		t.Error("a certificate of another CA is taken")
	}
}

// knowCRL gives a server the present revocation list, as its Run would.
func knowCRL(t *testing.T, ca *CA, id *Identity) {
	t.Helper()
	data, _, err := ca.CRL()
	if err == nil {
		_, err = id.acceptCRL(t.Context(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// handshake connects the two configurations and returns the client's name as the server
// sees it.
func handshake(t *testing.T, server, client *tls.Config) (Name, error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	type seen struct {
		name Name
		err  error
	}
	result := make(chan seen, 1)
	go func() {
		conn := tls.Server(a, server)
		err := conn.Handshake()
		if err != nil {
			a.Close()
			result <- seen{err: err}
			return
		}
		state := conn.ConnectionState()
		name, err := PeerName(&state)
		conn.Write([]byte{1})
		result <- seen{name, err}
	}()
	conn := tls.Client(b, client)
	err := conn.Handshake()
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	} else {
		b.Close()
	}
	s := <-result
	return s.name, errors.Join(err, s.err)
}

func TestOnlyTheOwnerReadsFiles(t *testing.T) {
	ca := openCA(t)
	o := options(t, ca, serveCA(t, ca), "management-01")
	if _, err := ca.CreateToken("management-02", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIdentity(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{o.Dir, ca.dir} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Base(path) == caCertFile {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm() != 0o600 {
				err = fmt.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// An identity of another CA enrols again with a token; without one the error names the
// next step.
func TestAnIdentityOfAnotherCAEnrolsAgain(t *testing.T) {
	ca, other := openCA(t), openCA(t)
	o := options(t, other, serveCA(t, other), "management-01")
	before := open(t, o)
	o.URL, o.CAFile = serveCA(t, ca), ca.CertFile()
	if Enrolled(ca.dir, o.Dir, o.Name) {
		t.Error("Enrolled is true for an identity of another CA")
	}
	if _, err := OpenIdentity(t.Context(), o); !errors.Is(err, ErrNotEnrolled) || !strings.Contains(err.Error(),
		"not of the CA in "+o.CAFile) {
		t.Errorf("without a token: %v", err)
	}
	var err error
	if o.Token, err = ca.CreateToken("management-01", time.Minute); err != nil {
		t.Fatal(err)
	}
	after := open(t, o)
	if bytes.Equal(before.Certificate().RawSubjectPublicKeyInfo, after.Certificate().RawSubjectPublicKeyInfo) {
		t.Error("it kept its key")
	}
	o.Token = ""
	if again := open(t, o); !again.Certificate().Equal(after.Certificate()) {
		t.Error("it does not keep its new certificate")
	}
	if _, err := os.Stat(filepath.Join(o.Dir, pendingFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A mounted token, whose file cannot be removed, is used only once.
func TestAMountedTokenIsRedeemedOnce(t *testing.T) {
	ca := openCA(t)
	o := options(t, ca, serveCA(t, ca), "management-01")
	mounted, err := os.Open(o.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Close()
	o.TokenFile = fmt.Sprintf("/proc/self/fd/%d", mounted.Fd())
	first := open(t, o)
	if _, err := os.ReadFile(o.TokenFile); err != nil {
		t.Skip("it can be removed here: ", err)
	}
	if again := open(t, o); !again.Certificate().Equal(first.Certificate()) {
		t.Error("each start takes a certificate")
	}
}

// PinCA accepts only the CA with the given fingerprint, and writes no other to disk.
func TestACAIsPinnedByItsFingerprint(t *testing.T) {
	ca, other := openCA(t), openCA(t)
	url := serveCA(t, ca)
	file := filepath.Join(t.TempDir(), "new", "ca.pem")
	for _, wrong := range []string{"", "sha256:", strings.ToUpper(Fingerprint(ca.Certificate())),
		Fingerprint(other.Certificate()), Fingerprint(ca.Certificate()) + ","} {
		if err := PinCA(t.Context(), url, wrong, file); err == nil {
			t.Errorf("%q is believed", wrong)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("a CA that was not believed is on disk")
	}
	for range 2 { // fetched, and then as it is
		if err := PinCA(t.Context(), url, Fingerprint(ca.Certificate()), file); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, ca.CertPEM()) {
		t.Errorf("%q %v", have, err)
	}
	if err := PinCA(t.Context(), url, Fingerprint(other.Certificate()), file); err == nil || !strings.Contains(err.Error(),
		file) {
		t.Errorf("a file of another CA: %v", err)
	}
	if err := PinCA(t.Context(), "http://localhost", Fingerprint(ca.Certificate()), file+"2"); err == nil ||
		!strings.Contains(err.Error(), "not https") {
		t.Errorf("plain HTTP: %v", err)
	}
}
