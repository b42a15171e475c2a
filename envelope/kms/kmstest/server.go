// Package kmstest has a KMS plugin for tests, and the suite that each envelope.KMS passes.
//
// A Server is a plugin in the sense of Kubernetes: its gRPC part is that of k8s.io/kms, it listens on a Unix socket,
// and its keys are in its memory alone. Only tests import the package.
package kmstest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsv2 "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"

	"atoll.dev/envelope/kms"
)

// annotation is the annotation that a Server adds and wants back.
const annotation = "version.kms.test"

// Server is a KMS plugin. Many goroutines may use one.
type Server struct {
	path string

	mu       sync.Mutex
	keys     map[string]cipher.AEAD
	current  string
	health   string
	unwraps  int           // answered questions, without those that waited for Continue
	isHung   chan struct{} // closed: Decrypt answers
	listener *grpc.Server  // nil while the server is down
	done     chan struct{} // closed when the listener has ended
}

// NewServer returns a server that is up, with one key, until the test ends.
func NewServer(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	hung := make(chan struct{})
	close(hung)
	s := &Server{path: filepath.Join(dir, "socket"), keys: map[string]cipher.AEAD{}, health: "ok", isHung: hung}
	s.Rotate()
	s.Up(t)
	t.Cleanup(func() {
		s.Continue()
		s.Down()
		os.RemoveAll(dir)
	})
	return s
}

// Endpoint returns the endpoint of the server.
func (s *Server) Endpoint() string { return "unix://" + s.path }

// Open connects to a server until the test ends.
func Open(t testing.TB, s *Server) *kms.Plugin {
	t.Helper()
	p, err := kms.Open(t.Context(), s.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Up begins to listen.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	server, done := grpc.NewServer(), make(chan struct{})
	kmsv2.RegisterKeyManagementServiceServer(server, service.NewGRPCService(s.path, time.Second, s))
	go func() {
		defer close(done)
		_ = server.Serve(l) // nil after Stop; a listener that breaks fails the calls of the test
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.done = server, done
}

// Down closes the socket and all connections. The keys stay.
func (s *Server) Down() {
	s.mu.Lock()
	server, done := s.listener, s.done
	s.listener = nil
	s.mu.Unlock()
	if server != nil {
		server.Stop()
		<-done
	}
}

// Hang makes the server answer no Decrypt until Continue.
func (s *Server) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isHung = make(chan struct{})
}

// Continue ends Hang.
func (s *Server) Continue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.isHung:
	default:
		close(s.isHung)
	}
}

// SetHealth sets what the server says of itself; "ok" is healthy.
func (s *Server) SetHealth(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = text
}

// Rotate makes a new key, which encrypts from now on.
func (s *Server) Rotate() {
	key := make([]byte, 32)
	rand.Read(key) // it never returns an error
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = fmt.Sprintf("key-%d", len(s.keys)+1)
	s.keys[s.current] = aead
}

// Unwraps returns how many data keys the server has unwrapped.
func (s *Server) Unwraps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unwraps
}

// Status implements service.Service.
func (s *Server) Status(context.Context) (*service.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &service.StatusResponse{Version: "v2", Healthz: s.health, KeyID: s.current}, nil
}

// Encrypt implements service.Service.
func (s *Server) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &service.EncryptResponse{KeyID: s.current, Annotations: map[string][]byte{annotation: []byte(s.current)},
		Ciphertext: s.keys[s.current].Seal(nil, nil, data, []byte(s.current))}, nil
}

// Decrypt implements service.Service.
func (s *Server) Decrypt(ctx context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	s.mu.Lock()
	hung := s.isHung
	s.mu.Unlock()
	waited := false
	select {
	case <-hung:
	default:
		waited = true
	}
	select {
	case <-hung:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	aead, isKnown := s.keys[r.KeyID]
	if !isKnown || string(r.Annotations[annotation]) != r.KeyID {
		return nil, status.Error(codes.InvalidArgument, "no such key")
	}
	plain, err := aead.Open(nil, nil, r.Ciphertext, []byte(r.KeyID))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the ciphertext is damaged")
	}
	if !waited { // the client of one that waited may have gone
		s.unwraps++
	}
	return plain, nil
}
