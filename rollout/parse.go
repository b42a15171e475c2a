package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Actions after a failed gate.
const (
	StopOnFailure   = "stop"
	RevertOnFailure = "revert"
)

// Parse reads the file of a rollout. The error joins all mistakes, each with FILE:LINE.
func Parse(file string, data []byte) (Rollout, error) {
	r := Rollout{file: file, lines: map[string]int{}}
	root, err := strictyaml.ParseDocument(file, data)
	if err != nil {
		return Rollout{}, err
	}
	if err := strictyaml.Decode(file, data, &r, strictyaml.Options{}); err != nil {
		return Rollout{}, err
	}
	if root == nil {
		return Rollout{}, fmt.Errorf("%s: the file is empty; it must have environment, change and gates", file)
	}
	collectLines(root, "", r.lines)
	if err := r.decodeSet(root); err != nil {
		return Rollout{}, err
	}
	r.MaxInFlight = cmp.Or(r.MaxInFlight, 1)
	r.Settle = cmp.Or(r.Settle, 10*time.Minute)
	r.Deadline = cmp.Or(r.Deadline, time.Hour)
	r.Expected = cmp.Or(r.Expected, min(max(10*time.Minute, r.Settle), r.Deadline))
	r.OnFailure = cmp.Or(r.OnFailure, StopOnFailure)
	if err := r.check(); err != nil {
		return Rollout{}, err
	}
	r.moveRevisionFromSet()
	return r, nil
}

// collectLines stores in lines the line of each value of a YAML node, by its path.
func collectLines(n *yaml.Node, path string, lines map[string]int) {
	lines[path] = n.Line
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			collectLines(n.Content[i+1], strictyaml.Join(path, n.Content[i].Value), lines)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			collectLines(item, fmt.Sprintf("%s[%d]", path, i), lines)
		}
	}
}

// decodeSet reads the values of change.set again, with dates as texts: so the configuration has them.
func (r *Rollout) decodeSet(root *yaml.Node) error {
	if len(r.Change.Set) == 0 {
		return nil
	}
	tagDatesAsTexts(root)
	var file struct {
		Change struct {
			Set map[string]any `yaml:"set"`
		} `yaml:"change"`
	}
	err := root.Decode(&file)
	r.Change.Set = file.Change.Set
	return err
}

// tagDatesAsTexts changes n so that each date in it is decoded as a text.
func tagDatesAsTexts(n *yaml.Node) {
	if n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, member := range n.Content {
		tagDatesAsTexts(member)
	}
}

// errorf returns an error at the value of a path, or at the nearest value around it.
func (r Rollout) errorf(path, format string, args ...any) error {
	line, found := r.lines[path]
	for at := path; !found && at != ""; line, found = r.lines[at] {
		at = at[:max(strings.LastIndexAny(at, ".["), 0)]
	}
	return &strictyaml.Mistake{File: r.file, Line: max(line, 1), Path: path, Text: fmt.Sprintf(format, args...)}
}

// Edits returns the keys of the configuration that the change sets, with their values.
func (c Change) Edits() map[string]any {
	edits := maps.Clone(c.Set)
	if edits == nil {
		edits = map[string]any{}
	}
	if c.Revision != "" {
		edits["git.revision"] = c.Revision
	}
	if c.Version != "" {
		edits["versions.atoll"] = c.Version
	}
	return edits
}

// check returns all mistakes that the file alone shows.
func (r Rollout) check() error {
	var mistakes []error
	refuse := func(bad bool, path, format string, args ...any) {
		if bad {
			mistakes = append(mistakes, r.errorf(path, format, args...))
		}
	}
	refuse(r.Environment == "", "environment", "the environment is missing")
	refuse(len(r.Change.Edits()) == 0, "change", "the change is empty; use revision, version or set")
	for _, short := range []struct{ name, value, key string }{
		{"revision", r.Change.Revision, "git.revision"}, {"version", r.Change.Version, "versions.atoll"},
	} {
		_, isSet := r.Change.Set[short.key]
		refuse(short.value != "" && isSet, "change.set."+short.key, "change.%s sets this key too; remove one of both",
			short.name)
	}
	mistakes = append(mistakes, r.checkKeys()...)
	for i, share := range r.Shares {
		path := fmt.Sprintf("shares[%d]", i)
		refuse(share < 1 || share > 99, path, "a share is 1 to 99 percent; the rest follows by itself")
		refuse(i > 0 && share <= r.Shares[i-1], path, "shares grow; %d follows %d", share, r.Shares[max(i-1, 0)])
	}
	for path, list := range map[string][]string{"canaries": r.Canaries, "sectors": r.Sectors, "approval": r.Approval} {
		for i, name := range list {
			refuse(slices.Contains(list[:i], name), fmt.Sprintf("%s[%d]", path, i), "%s is there twice", name)
		}
	}
	refuse(r.MaxInFlight < 0, "maxInFlight", "it must be at least 1")
	for path, d := range map[string]time.Duration{"soak.wave": r.Soak.Wave, "soak.sector": r.Soak.Sector, "expected": r.
		Expected, "settle": r.Settle, "deadline": r.Deadline} {
		refuse(d < 0, path, "a duration is not negative")
	}
	refuse(r.Deadline <= r.Settle, "deadline", "the deadline %s is not longer than settle, %s", r.Deadline, r.Settle)
	refuse(r.Expected > r.Deadline, "expected", "the expected duration %s is longer than the deadline, %s", r.Expected,
		r.Deadline)
	refuse(r.OnFailure != StopOnFailure && r.OnFailure != RevertOnFailure, "onFailure", "%q is neither stop nor revert",
		r.OnFailure)
	for i, f := range r.Freeze {
		if _, err := f.window(); err != nil {
			mistakes = append(mistakes, r.errorf(fmt.Sprintf("freeze[%d]", i), "%s", err))
		}
	}
	refuse(len(r.Gates) == 0, "gates", "there is no gate; without one nothing stops the rollout")
	for i, g := range r.Gates {
		named := slices.ContainsFunc(r.Gates[:i], func(before Gate) bool { return before.Name == g.Name })
		refuse(named, fmt.Sprintf("gates[%d].name", i), "two gates have the name %s", g.Name)
		if err := g.check(r.Prometheus); err != nil {
			mistakes = append(mistakes, r.errorf(fmt.Sprintf("gates[%d]", i), "%s", err))
		}
	}
	slices.SortStableFunc(mistakes, func(a, b error) int { return cmp.Compare(lineOf(a), lineOf(b)) })
	return errors.Join(mistakes...)
}

// checkKeys returns the mistakes in the keys of the change.
func (r Rollout) checkKeys() (mistakes []error) {
	edits := r.Change.Edits()
	for _, key := range slices.Sorted(maps.Keys(r.Change.Set)) {
		at := "change.set." + key
		top, _, _ := strings.Cut(key, ".")
		switch within := outerKey(edits, key); {
		case top == "" || slices.Contains(strings.Split(key, "."), ""):
			mistakes = append(mistakes, r.errorf(at, "the key has an empty part"))
		case top == "sector" || top == "sectors" || top == "managementClusters":
			mistakes = append(mistakes, r.errorf(at, "a rollout sets settings only; edit the file of the region"))
		case within != "":
			mistakes = append(mistakes, r.errorf(at, "the change sets %s too, which this key is in", within))
		case key == "git":
			mistakes = append(mistakes, r.errorf(at, "write each of its keys for itself, such as git.revision"))
		}
	}
	for key := range edits {
		around := outerKey(edits, key)
		if _, isSet := r.Change.Set[key]; !isSet && around != "" && around != "git" { // version; git is refused above
			mistakes = append(mistakes, r.errorf("change.set."+around, "the change sets %s too, which is in this key", key))
		}
	}
	return mistakes
}

// outerKey returns the longest of some keys that is a mapping which contains a key, or "".
func outerKey(keys map[string]any, key string) string {
	for i := len(key) - 1; i > 0; i-- {
		if _, has := keys[key[:i]]; has && key[i] == '.' {
			return key[:i]
		}
	}
	return ""
}

// lineOf returns the line of a mistake.
func lineOf(err error) int {
	if m, ok := errors.AsType[*strictyaml.Mistake](err); ok {
		return m.Line
	}
	return 0
}

// check returns the first mistake of a gate. prometheus is the URL that the rollout names; "": it names none.
func (g Gate) check(prometheus string) error {
	for _, limit := range []*float64{g.AtLeast, g.AtMost} {
		if limit != nil && !isFinite(*limit) {
			return fmt.Errorf("a limit of the gate %s is no finite number", g.Name)
		}
	}
	kinds := 0
	for _, set := range []bool{g.Query != "", g.Burn != nil, g.URL != ""} {
		if set {
			kinds++
		}
	}
	switch {
	case g.Name == "":
		return errors.New("the gate has no name")
	case kinds != 1:
		return fmt.Errorf("the gate %s must have one of query, burn and url", g.Name)
	case g.URL == "" && prometheus == "":
		return fmt.Errorf("the gate %s asks Prometheus, and the rollout names no prometheus", g.Name)
	case g.Query != "" && g.AtLeast == nil && g.AtMost == nil:
		return fmt.Errorf("the gate %s has neither atLeast nor atMost", g.Name)
	case g.Query == "" && (g.AtLeast != nil || g.AtMost != nil):
		return fmt.Errorf("the gate %s has a limit and no query", g.Name)
	case g.URL != "":
		if u, err := url.Parse(g.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("the url of the gate %s is no URL of http or https", g.Name)
		}
	case g.Burn != nil:
		b := g.Burn.withDefaults()
		switch {
		case !strings.Contains(b.Query, "$window"):
			return fmt.Errorf("the burn of the gate %s needs a query with $window", g.Name)
		case !(b.Objective > 0 && b.Objective < 1): // nor NaN
			return fmt.Errorf("the objective of the gate %s must be between 0 and 1", g.Name)
		case b.Short <= 0 || b.Short >= b.Long || b.Factor <= 0 || !isFinite(b.Factor):
			return fmt.Errorf("the burn of the gate %s needs a short window, a longer one and a positive factor", g.Name)
		case b.Factor*(1-b.Objective) >= 1:
			return fmt.Errorf("the burn of the gate %s never fails: the factor %g with the objective %g is a share of %.3g "+
				"failed requests; lower the factor", g.Name, b.Factor, b.Objective, b.Factor*(1-b.Objective))
		}
	}
	return nil
}

// isFinite reports whether v is a number, and not infinite.
func isFinite(v float64) bool { return v-v == 0 }

func (b Burn) withDefaults() Burn {
	b.Short, b.Long = cmp.Or(b.Short, 5*time.Minute), cmp.Or(b.Long, time.Hour)
	b.Factor = cmp.Or(b.Factor, 14.4)
	return b
}
