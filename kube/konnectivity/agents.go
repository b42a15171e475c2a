package konnectivity

import (
	"context"
	"net/url"
	"slices"
	"sync"

	"google.golang.org/grpc/metadata"
)

// maxIdentifiers bounds the addresses and names that one agent declares.
const maxIdentifiers = 32

// identifiers returns the addresses and names that an agent declares, as in "host=a&ipv4=10.0.0.1".
func identifiers(ctx context.Context) []string {
	md, _ := metadata.FromIncomingContext(ctx)
	var list []string
	for _, text := range md.Get("agentIdentifiers") {
		values, err := url.ParseQuery(text)
		if err != nil {
			continue
		}
		for _, kind := range []string{"ipv4", "ipv6", "host"} {
			list = append(list, values[kind]...)
		}
	}
	return list[:min(len(list), maxIdentifiers)]
}

// agents are the connected agents. The zero value has none.
type agents struct {
	mu      sync.Mutex
	all     []*agent          // oldest first
	holders map[string]string // identifier -> the node that declared it first, while that node has an agent
	turn    int
}

func (s *agents) add(a *agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, a)
	s.assignIdentifiers()
}

func (s *agents) remove(a *agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *agent) bool { return other == a })
	s.assignIdentifiers()
}

// assignIdentifiers takes identifiers from nodes that declare them no more, and gives them to the node that is
// connected for longest.
func (s *agents) assignIdentifiers() {
	before := s.holders
	s.holders = map[string]string{}
	for _, a := range s.all { // nodes keep their identifiers
		for _, name := range a.identifiers {
			if before[name] == a.node {
				s.holders[name] = a.node
			}
		}
	}
	for _, a := range s.all {
		for _, name := range a.identifiers {
			if s.holders[name] == "" {
				s.holders[name] = a.node
			}
		}
	}
}

// choose returns the agent that dials a host: the newest of the node that holds the host, otherwise the newest of each
// node in turn; nil when no agent is connected.
func (s *agents) choose(host string) *agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	if node := s.holders[host]; node != "" {
		return s.newest(node)
	}
	s.turn++
	return s.newest(s.all[s.turn%len(s.all)].node)
}

func (s *agents) newest(node string) *agent {
	for _, a := range slices.Backward(s.all) {
		if a.node == node {
			return a
		}
	}
	return nil
}
