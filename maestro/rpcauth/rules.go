package rpcauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// A rule lets users, or members of groups, publish to or subscribe to some
// sources and clusters. "*" stands for all names.
type rule struct {
	users, groups     []string
	sources, clusters []string
	verbs             []Verb
}

// rules are the content of the file of --grpc-authorizer-config:
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

// parseRules reads a file of rules. The error is its first *strictyaml.Mistake.
func parseRules(data []byte) (rules, error) {
	if len(data) > maxRulesBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are possible", len(data), maxRulesBytes)
	}
	root, err := strictyaml.ParseDocument("", data)
	if err != nil {
		return nil, err
	}
	if root == nil {
		return nil, &strictyaml.Mistake{Line: 1, Text: "the file is empty; it needs a list of rules"}
	}
	p := &ruleParser{}
	p.walk.Report = p.report
	list, ok := p.members(root, "", "rules")["rules"]
	if !ok {
		p.report(root, "rules", "a list is expected")
	}
	rs := make(rules, 0)
	for i, n := range p.list(list, "rules") {
		rs = append(rs, p.rule(n, fmt.Sprintf("rules[%d]", i)))
	}
	if p.first != nil {
		return nil, p.first
	}
	return rs, nil
}

// ruleParser reads the values of a file of rules and keeps the first mistake.
type ruleParser struct {
	walk  strictyaml.Walker
	first *strictyaml.Mistake
}

// report keeps a mistake, unless it is not the first.
func (p *ruleParser) report(n *yaml.Node, path, text string) {
	if p.first == nil {
		p.first = &strictyaml.Mistake{Line: max(n.Line, 1), Path: path, Text: text}
	}
}

// rule reads one rule.
func (p *ruleParser) rule(n *yaml.Node, path string) rule {
	members := p.members(n, path, "users", "groups", "sources", "clusters", "verbs")
	names := func(key string) []string { return p.names(members[key], strictyaml.Join(path, key)) }
	r := rule{users: names("users"), groups: names("groups"), sources: names("sources"), clusters: names("clusters")}
	for _, verb := range names("verbs") {
		if verb != string(Publish) && verb != string(Subscribe) {
			p.report(members["verbs"], strictyaml.Join(path, "verbs"),
				fmt.Sprintf("the verb %.40q is neither pub nor sub", verb))
		}
		r.verbs = append(r.verbs, Verb(verb))
	}
	switch {
	case len(r.users) == 0 && len(r.groups) == 0:
		p.report(n, path, "the rule names neither users nor groups")
	case len(r.sources) == 0 && len(r.clusters) == 0:
		p.report(n, path, "the rule names neither sources nor clusters")
	case len(r.verbs) == 0:
		p.report(n, path, "the rule names no verbs")
	}
	return r
}

// members returns the values of a mapping that has some of the keys and no others.
func (p *ruleParser) members(n *yaml.Node, path string, keys ...string) map[string]*yaml.Node {
	n, leave, ok := p.walk.Enter(n, path)
	if !ok {
		return nil
	}
	defer leave()
	members := map[string]*yaml.Node{}
	p.walk.VisitPairs(n, path, func(key, value *yaml.Node, _ string) {
		if !slices.Contains(keys, key.Value) {
			p.report(key, path, fmt.Sprintf("unknown key %.40q; known are %s", key.Value, strings.Join(keys, ", ")))
			return
		}
		members[key.Value] = value
	})
	return members
}

// list returns the entries of a list, none of a missing list.
func (p *ruleParser) list(n *yaml.Node, path string) []*yaml.Node {
	if n == nil {
		return nil
	}
	n, leave, ok := p.walk.Enter(n, path)
	if !ok {
		return nil
	}
	defer leave()
	if n.Kind != yaml.SequenceNode {
		p.report(n, path, "a list is expected")
		return nil
	}
	return n.Content
}

// names reads a list of names, none of a missing list.
func (p *ruleParser) names(n *yaml.Node, path string) []string {
	entries := p.list(n, path)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		e, leave, ok := p.walk.Enter(e, path)
		leave()
		switch {
		case !ok:
		case e.Kind != yaml.ScalarNode || e.Tag != "!!str" || e.Value == "":
			p.report(e, path, "an entry is not text; put it in quotes")
		case strings.Contains(e.Value, "*") && e.Value != "*":
			p.report(e, path, fmt.Sprintf("%.40q: * stands alone, for all", e.Value))
		}
		names = append(names, e.Value)
	}
	return names
}

// allow reports whether a rule permits the caller the verb on the source or cluster name.
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

// rulesInterval is the time between two reads of the file.
const rulesInterval = time.Second

// openRules reads a file of rules.
func openRules(path string, log *slog.Logger) (*rulesFile, error) {
	f := &rulesFile{path: path, log: log}
	if _, err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// load reads the file. changed is true when the file has other rules than before.
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

// current returns the rules in force; none for a nil file.
func (f *rulesFile) current() rules {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// run reads the file every rulesInterval until ctx ends.
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
