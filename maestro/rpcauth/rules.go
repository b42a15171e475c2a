package rpcauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"bytes"

	"go.yaml.in/yaml/v3"
)

// A rule lets users, or members of groups, publish to or subscribe to some
// sources and clusters. "*" is all that are known by a name.
type rule struct {
	users, groups     []string
	sources, clusters []string
	verbs             []Verb
}

// rules are what --grpc-authorizer-config holds:
//
//	rules:
//	- users: [fleet-controller]       # or groups, or both; any of them is enough
//	  groups: [platform-team]
//	  sources: [fleet]                # or clusters, or both
//	  clusters: ["*"]
//	  verbs: [pub, sub]
//
// A call that no rule permits is refused.
type rules []rule

const maxRulesBytes = 1 << 20 // bytes of a file

// parseRules reads a file of rules. Its errors name the line.
func parseRules(data []byte) (rules, error) {
	if len(data) > maxRulesBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are possible", len(data), maxRulesBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("line 1: the file is empty; it needs a list of rules")
	} else if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file has more than one document")
	}
	members, err := readMapping(doc.Content[0], "rules")
	if err != nil {
		return nil, err
	}
	list, ok := members["rules"]
	if !ok || list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: rules is not a list", max(doc.Content[0].Line, 1))
	}
	rs := make(rules, 0, len(list.Content))
	for _, n := range list.Content {
		r, err := parseRule(n)
		if err != nil {
			return nil, err
		}
		rs = append(rs, r)
	}
	return rs, nil
}

func parseRule(n *yaml.Node) (r rule, err error) {
	members, err := readMapping(n, "users", "groups", "sources", "clusters", "verbs")
	if err != nil {
		return r, err
	}
	var verbs []string
	for name, to := range map[string]*[]string{"users": &r.users, "groups": &r.groups, "sources": &r.sources,
		"clusters": &r.clusters, "verbs": &verbs} {
		if *to, err = readNames(members[name], name); err != nil {
			return r, err
		}
	}
	for _, v := range verbs {
		if v != string(Publish) && v != string(Subscribe) {
			return r, fmt.Errorf("line %d: the verb %.40q is neither pub nor sub", members["verbs"].Line, v)
		}
		r.verbs = append(r.verbs, Verb(v))
	}
	switch {
	case len(r.users) == 0 && len(r.groups) == 0:
		return r, fmt.Errorf("line %d: the rule names neither users nor groups", n.Line)
	case len(r.sources) == 0 && len(r.clusters) == 0:
		return r, fmt.Errorf("line %d: the rule names neither sources nor clusters", n.Line)
	case len(r.verbs) == 0:
		return r, fmt.Errorf("line %d: the rule names no verbs", n.Line)
	}
	return r, nil
}

// readMapping reads a mapping that has these members and no others.
func readMapping(n *yaml.Node, names ...string) (map[string]*yaml.Node, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: not a mapping of %s", n.Line, strings.Join(names, ", "))
	}
	members := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !slices.Contains(names, key.Value) || key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: %.40q is not known here; there are %s", key.Line, key.Value,
				strings.Join(names, ", "))
		}
		if members[key.Value] != nil {
			return nil, fmt.Errorf("line %d: %s is there twice", key.Line, key.Value)
		}
		members[key.Value] = n.Content[i+1]
	}
	return members, nil
}

// readNames reads a list of text.
func readNames(n *yaml.Node, name string) ([]string, error) {
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: %s is not a list", n.Line, name)
	}
	list := make([]string, 0, len(n.Content))
	for _, e := range n.Content {
		if e.Kind != yaml.ScalarNode || e.Tag != "!!str" || e.Value == "" {
			return nil, fmt.Errorf("line %d: an entry of %s is not text; put it in quotes", e.Line, name)
		}
		if strings.Contains(e.Value, "*") && e.Value != "*" {
			return nil, fmt.Errorf("line %d: %.40q in %s: * stands alone, for all", e.Line, e.Value, name)
		}
		list = append(list, e.Value)
	}
	return list, nil
}

func (rs rules) allow(c Caller, verb Verb, scope Scope, name string) bool {
	has := func(list []string, v string) bool {
		return v != "" && (slices.Contains(list, v) || slices.Contains(list, "*"))
	}
	for _, r := range rs {
		on := r.sources
		if scope == Clusters {
			on = r.clusters
		}
		if !slices.Contains(r.verbs, verb) || !has(on, name) {
			continue
		}
		if has(r.users, c.user) || slices.ContainsFunc(c.groups, func(g string) bool { return has(r.groups, g) }) {
			return true
		}
	}
	return false
}

// rulesFile is a file of rules that is read again when it changes. When it cannot be read,
// the last good rules stay in force.
type rulesFile struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex
	hash  [sha256.Size]byte
	rules rules
}

const rulesInterval = time.Second

func openRules(path string, log *slog.Logger) (*rulesFile, error) {
	f := &rulesFile{path: path, log: log}
	if _, err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// load reads the file. changed is true when it had other rules.
func (f *rulesFile) load() (changed bool, err error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return false, fmt.Errorf("rules of gRPC: %w", err)
	}
	sum := sha256.Sum256(data)
	f.mu.Lock()
	defer f.mu.Unlock()
	if sum == f.hash {
		return false, nil
	}
	f.hash = sum // so that an error in the file is logged once
	rs, err := parseRules(data)
	if err != nil {
		return false, fmt.Errorf("rules of gRPC: %s: %w", f.path, err)
	}
	f.rules = rs
	return true, nil
}

func (f *rulesFile) current() rules {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

func (f *rulesFile) run(ctx context.Context) error {
	tick := time.NewTicker(rulesInterval)
	defer tick.Stop()
	missing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		changed, err := f.load()
		switch {
		case err != nil && !missing:
			f.log.LogAttrs(ctx, slog.LevelError, "the rules of gRPC cannot be read; the last ones stay in force",
				slog.Any("error", err))
		case changed:
			f.log.LogAttrs(ctx, slog.LevelInfo, "the rules of gRPC changed", slog.Int("rules", len(f.current())))
		}
		missing = errors.Is(err, os.ErrNotExist)
	}
}
