// Package peers finds servers that share Maestro's database and have died.
//
// Each server renews a row in the table server_presence. When a server stops renewing its row, the statuses that the
// broker gave it and that it had not committed are lost, since a broker keeps no messages of a disconnected client.
// The server that deletes the row asks all agents to compare. A server acknowledges a status after its commit, so no
// other status can be lost.
//
// Only package maestro and its packages import it.
package peers

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/store"
)

// Options are the parameters of Open. All are needed.
type Options struct {
	Store       *store.Store
	AskAll      func()             // asks all agents to compare; called after a server died
	DeadServers prometheus.Counter // rows of dead servers that this server deleted
	Logger      *slog.Logger
}

// Server is this server among the servers that share a database. It is safe for concurrent use.
type Server struct {
	store       *store.Store
	askAll      func()
	deadServers prometheus.Counter
	log         *slog.Logger

	instance string       // this server's name among the servers of the database
	dbLife   atomic.Value // string: the database's life, shortened
	leads    atomic.Bool
}

// Open reads the life of the database and returns a Server that has no row until Run.
func Open(ctx context.Context, o Options) (*Server, error) {
	s := &Server{store: o.Store, askAll: o.AskAll, deadServers: o.DeadServers, log: o.Logger, instance: uuid.NewString()}
	if err := s.readLife(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Leads reports whether this server reports the presence of agents to CLM: the live server that started first does.
func (s *Server) Leads() bool { return s.leads.Load() }

// Life returns the database's life. Specs and comparisons carry it, since generations of
// different lives cannot be compared.
func (s *Server) Life() string {
	life, _ := s.dbLife.Load().(string)
	return life
}
