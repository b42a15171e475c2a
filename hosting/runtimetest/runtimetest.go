// Package runtimetest is the test suite of runtimes of control planes: whatever
// implements hosting.Planes passes Run.
//
// It sees a runtime as hosting does, through the interface alone, and a plane as
// a customer does, through its API. Only tests import it.
package runtimetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/rotation"
	"atoll.dev/hosting"
	"atoll.dev/hosting/controlplane"
)

// limit is how long the suite waits for a plane, on a machine that is busy.
const limit = 90 * time.Second

// Releases are the releases that a runtime under test must offer.
var Releases = []controlplane.Version{"1.36.3", "1.36.4"}

const missingRelease controlplane.Version = "1.99.0"

// Run runs the suite. Each call of newRuntime returns a runtime that is not open,
// on the same planes.
func Run(t *testing.T, newRuntime func(*testing.T) hosting.Planes) {
	s := &suite{
		T: t, newRuntime: newRuntime, id: controlplane.ID{Namespace: "clusters-suite", Name: "hc-suite"},
		spec: controlplane.Spec{
			Name: "suite", Release: Releases[0], ServerNames: []string{"hc-suite.example"}, ServiceCIDR: "172.30.0.0/16",
		},
	}
	s.open()
	defer func() { s.close() }()

	t.Log("a plane that never existed")
	s.checkAbsent()
	t.Log("ordered, it becomes ready; ordered again, it is the same")
	first := s.checkStart()
	t.Log("it refuses a release that cannot run, and goes on")
	s.checkRefusal(first)
	t.Log("asleep it keeps its data and authority; other orders count until it is down")
	s.checkSleep()
	t.Log("another release, name and keys replace it, with its data")
	replaced := s.checkReplacement()
	t.Log("it outlives its runtime; two runtimes are never open")
	s.checkSecondRuntime(replaced)
	t.Log("discarded, nothing is left; a new plane of the name is empty")
	s.checkDiscard()
}

// suite is a run of the suite with one plane.
type suite struct {
	*testing.T
	newRuntime func(*testing.T) hosting.Planes
	id         controlplane.ID
	spec       controlplane.Spec

	planes  hosting.Planes
	close   func() // of the open runtime
	changes chan struct{}

	firstAuthority []byte // of the plane that checkStart has started
}

// checkAbsent checks a plane that never existed.
func (s *suite) checkAbsent() {
	if o := s.observe(); o.State != controlplane.Down || o.Running || o.HasData || o.LastStart.Release != "" {
		s.Errorf("observed: %+v", o)
	}
	s.notServing()
	s.must(s.planes.Sleep(s.id))
	s.await("down", func(o controlplane.Observation) bool { return o.State == controlplane.Down && !o.Running })
}

// checkStart checks that an ordered plane becomes ready, and is the same when it is ordered again. It returns the plane
// when it became ready.
func (s *suite) checkStart() controlplane.Observation {
	s.must(s.planes.Ensure(s.id, s.spec))
	first := s.ready()
	if !first.Running || first.Backend == "" || !first.LastStart.WasReady || first.LastStart.Release != s.spec.Release ||
		!slices.Equal(first.LastStart.ServerNames, s.spec.ServerNames) || first.LastStart.ServiceCIDR != s.spec.ServiceCIDR {
		s.Errorf("observed: %+v", first)
	}
	s.serves(s.spec.ServerNames[0])
	s.write("first")
	s.firstAuthority = s.authority()
	s.must(s.planes.Ensure(s.id, s.spec))
	if o := s.ready(); !o.ReadySince.Equal(first.ReadySince) {
		s.Errorf("ordered twice, it was ready at %s, then at %s", first.ReadySince, o.ReadySince)
	}
	if !slices.Contains(s.planes.List(), s.id) {
		s.Errorf("the list is %v", s.planes.List())
	}
	return first
}

// checkRefusal checks that the plane refuses a release that cannot run, and goes on as first.
func (s *suite) checkRefusal(first controlplane.Observation) {
	refused := s.spec
	refused.Release = missingRelease
	err := s.planes.Ensure(s.id, refused)
	if failure, ok := errors.AsType[*controlplane.Failure](err); !ok || failure.Reason != controlplane.BinaryMissing {
		s.Errorf("a release that is missing: %v", err)
	}
	if o := s.ready(); !o.ReadySince.Equal(first.ReadySince) {
		s.Error("the refused order restarted it")
	}
}

// checkSleep checks that a plane that sleeps keeps its data and authority, and that an order before its end counts.
func (s *suite) checkSleep() {
	s.must(s.planes.Sleep(s.id))
	down := s.await("down", func(o controlplane.Observation) bool { return o.State == controlplane.Down && !o.Running })
	if !down.HasData || down.LastStart.Release != s.spec.Release || !down.LastStart.WasReady {
		s.Errorf("asleep: %+v", down)
	}
	s.notServing()
	s.signs(s.firstAuthority)
	s.must(s.planes.Ensure(s.id, s.spec))
	s.ready()
	s.has("first")
	s.must(s.planes.Sleep(s.id))
	s.must(s.planes.Ensure(s.id, s.spec))
	s.ready()
	s.has("first")
}

// checkReplacement checks that a plane of another release, name and keys replaces it, with its data. It returns the new
// plane.
func (s *suite) checkReplacement() controlplane.Observation {
	s.spec.Release, s.spec.ServerNames = Releases[1], []string{"hc-renamed.example"}
	s.spec.ServiceCIDR = "172.16.0.0/16"
	s.spec.Rotations = controlplane.Rotations{Encryption: rotation.Order{ID: "r1", Step: rotation.Prepare}}
	s.must(s.planes.Ensure(s.id, s.spec))
	s.await("the replacement", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.LastStart.Release == s.spec.Release
	})
	if o := s.observe(); o.LastStart.ServiceCIDR != "172.30.0.0/16" {
		s.Errorf("the network of Services became %s", o.LastStart.ServiceCIDR)
	}
	s.serves("hc-renamed.example")
	s.has("first")
	if o := s.observe(); o.LastStart.Rotations != s.spec.Rotations {
		s.Errorf("the rotations are %+v", o.LastStart.Rotations)
	}
	s.encryptedBy("r1")
	return s.observe()
}

// checkSecondRuntime checks that two runtimes are never open, and that the plane goes on when its runtime ends.
func (s *suite) checkSecondRuntime(replaced controlplane.Observation) {
	if _, err := s.newRuntime(s.T).Open(s.Context(), func(controlplane.ID) {}); err == nil {
		s.Error("a second runtime was opened")
	}
	s.close()
	s.open()
	if o := s.observe(); !o.Running {
		s.Errorf("a new runtime observes %+v", o)
	}
	s.must(s.planes.Ensure(s.id, s.spec))
	if o := s.ready(); o.Backend != replaced.Backend {
		s.Errorf("it moved from %s to %s", replaced.Backend, o.Backend)
	}
	s.has("first")
	if !bytes.Equal(s.authority(), s.firstAuthority) {
		s.Error("its authority is another")
	}
}

// checkDiscard checks that nothing is left of a discarded plane, and that a new plane of its name is empty.
func (s *suite) checkDiscard() {
	s.discard()
	if o := s.observe(); o.State != controlplane.Down || o.Running || o.HasData || o.LastStart.Release != "" {
		s.Errorf("discarded: %+v", o)
	}
	if slices.Contains(s.planes.List(), s.id) {
		s.Errorf("discarded, and listed: %v", s.planes.List())
	}
	s.notServing()
	s.must(s.planes.Ensure(s.id, s.spec))
	s.ready()
	if _, err := s.configMaps().Get(s.Context(), "first", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.Errorf("data of the discarded plane: %v", err)
	}
	if bytes.Equal(s.authority(), s.firstAuthority) {
		s.Error("the authority of the discarded plane is used again")
	}
	s.discard()
}

func (s *suite) open() {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.planes, s.changes = s.newRuntime(s.T), make(chan struct{}, 1)
	changes := s.changes
	closeRuntime, err := s.planes.Open(ctx, func(controlplane.ID) {
		select {
		case changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		cancel()
		s.Fatal(err)
	}
	s.close = sync.OnceFunc(func() { cancel(); closeRuntime() })
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// encryptedBy waits until the key of a rotation encrypts all Secrets of the plane.
func (s *suite) encryptedBy(rotation string) {
	s.Helper()
	for end := time.Now().Add(limit); ; {
		by, err := s.planes.EncryptedBy(s.id)
		s.must(err)
		if by == rotation {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("Secrets are encrypted by %q, want %q", by, rotation)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (s *suite) observe() controlplane.Observation {
	s.Helper()
	o, err := s.planes.Observe(s.id)
	s.must(err)
	return o
}

// await waits for an observation. It looks only after a change that the runtime
// has notified: hosting does not poll either.
func (s *suite) await(what string, is func(controlplane.Observation) bool) controlplane.Observation {
	s.Helper()
	for timeout := time.After(limit); ; {
		o := s.observe()
		if is(o) {
			return o
		}
		select {
		case <-s.changes:
		case <-timeout:
			s.Fatalf("waiting for %s: %+v", what, o)
		}
	}
}

func (s *suite) ready() controlplane.Observation {
	s.Helper()
	return s.await("ready", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
}

// discard discards the plane, twice.
func (s *suite) discard() {
	s.Helper()
	for timeout := time.After(limit); ; {
		done, err := s.planes.Discard(s.id)
		s.must(err)
		if done {
			break
		}
		select {
		case <-s.changes:
		case <-timeout:
			s.Fatalf("discarding: %+v", s.observe())
		}
	}
}

// notServing checks that the plane has no client.
func (s *suite) notServing() {
	s.Helper()
	if _, err := s.planes.Client(s.id); !errors.Is(err, controlplane.ErrNotServing) {
		s.Errorf("a client of a plane that does not serve: %v", err)
	}
}

// serves checks that the plane's certificate has a server name.
func (s *suite) serves(name string) {
	s.Helper()
	admin, err := s.planes.Client(s.id)
	s.must(err)
	config, err := admin.RESTConfig()
	s.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	conn, err := tls.Dial("tcp", s.observe().Backend, &tls.Config{ServerName: name, RootCAs: roots})
	if err != nil {
		s.Errorf("as %s: %v", name, err)
		return
	}
	conn.Close()
	if admin.ServerName != name || admin.Version == "" {
		s.Errorf("its client is for %q, version %q", admin.ServerName, admin.Version)
	}
}

// authority is the certificate of the plane's authority.
func (s *suite) authority() []byte {
	s.Helper()
	admin, err := s.planes.Client(s.id)
	s.must(err)
	config, err := admin.RESTConfig()
	s.must(err)
	return bytes.TrimSpace(config.CAData)
}

// signs checks that the plane's authority signs a client certificate.
func (s *suite) signs(authority []byte) {
	s.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	expires := time.Now().Add(10 * time.Minute).UTC().Truncate(time.Second)
	signed, err := s.planes.Sign(s.id, controlplane.CertificateRequest{
		PublicKey: &key.PublicKey, CommonName: "ann", Organization: "group", Expires: expires,
	})
	s.must(err)
	block, _ := pem.Decode(signed.PEM)
	if block == nil {
		s.Fatalf("no certificate: %s", signed.PEM)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	s.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	subject := fmt.Sprint(cert.Subject.CommonName, cert.Subject.Organization)
	if err != nil || subject != "ann[group]" || !cert.NotAfter.Equal(expires) || !key.PublicKey.Equal(cert.PublicKey) {
		s.Errorf("certificate of %s until %s: %v", subject, cert.NotAfter, err)
	}
	if !bytes.Equal(bytes.TrimSpace(signed.CAPEM), authority) {
		s.Error("signed by another authority")
	}
}

func (s *suite) configMaps() dynamic.ResourceInterface {
	s.Helper()
	admin, err := s.planes.Client(s.id)
	s.must(err)
	config, err := admin.RESTConfig()
	s.must(err)
	client, err := dynamic.NewForConfig(config)
	s.must(err)
	return client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
}

// write writes data into the plane.
func (s *suite) write(name string) {
	s.Helper()
	_, err := s.configMaps().Create(s.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	s.must(err)
}

// has checks that the data is there.
func (s *suite) has(name string) {
	s.Helper()
	if _, err := s.configMaps().Get(s.Context(), name, metav1.GetOptions{}); err != nil {
		s.Errorf("the plane lost its data: %v", err)
	}
}
