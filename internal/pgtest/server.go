package pgtest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"atoll.dev/internal/postgres"
)

// PrivateServer is a server of one test, which the test may kill and start again. It has default durability.
type PrivateServer struct {
	*postgres.Cluster
	t       testing.TB
	process *postgres.Process
}

// StartServer starts a server for this test alone, with these settings besides PostgreSQL's defaults. The server is
// stopped when the test ends.
func StartServer(t testing.TB, settings ...map[string]string) *PrivateServer {
	t.Helper()
	skipShort(t)
	all := map[string]string{}
	for _, s := range settings {
		maps.Copy(all, s)
	}
	c, err := newCluster(all)
	if err != nil {
		t.Fatal(err)
	}
	s := &PrivateServer{Cluster: c, t: t}
	s.Start()
	t.Cleanup(func() {
		s.Kill()
		os.RemoveAll(filepath.Dir(c.DataDir))
	})
	return s
}

// Start starts the server again after Kill and waits until it answers.
func (s *PrivateServer) Start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
	defer cancel()
	p, err := s.Cluster.Start(ctx, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.process = p
}

// Kill ends the server with SIGKILL.
func (s *PrivateServer) Kill() {
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
}
