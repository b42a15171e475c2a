package progress

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"atoll.dev/api/clm"
)

// Placement says whether a caller may read which management cluster hosts a
// cluster. No caller reads about other management clusters, their names, their
// free capacity or their number: that is for operators, at the lifecycle
// manager.
type Placement uint8

const (
	HidePlacement Placement = iota
	ShowPlacement
)

// noRoom is why a cluster waits, where its placement's report does not say it
// in words that are made for its owner.
const noRoom = "waiting for capacity: the region has no room for the cluster at present"

// beingPlaced is what a cluster waits for that has no placement yet.
const beingPlaced = "a management cluster is being chosen"

// failedStep takes the place of an adapter's internal error.
const failedStep = "a step failed inside the region; it is tried again"

// hostNames are the names of the management clusters that reports on a resource
// mention as its own, the longest first.
func hostNames(known []string, reports Reports) []string {
	for _, r := range reports {
		var d struct {
			placed
			TargetCluster string `json:"target_cluster"`
		}
		_ = json.Unmarshal(r.Data, &d)
		for _, name := range []string{d.ManagementCluster, d.TargetCluster} {
			if name != "" && !slices.Contains(known, name) {
				known = append(slices.Clone(known), name)
			}
		}
	}
	slices.SortStableFunc(known, func(a, b string) int { return len(b) - len(a) })
	return known
}

// filter removes from reports what the caller may not read. hosts are the names
// of the management clusters that hosted the resource.
type filter struct {
	see   Placement
	hosts []string
	why   string // the cluster waits, in words for its owner
}

func filterOf(see Placement, hosts []string, reports Reports) filter {
	f := filter{see: see, hosts: hostNames(hosts, reports), why: noRoom}
	if why := data[placed](reports, placement).Why; why != "" {
		f.why = "waiting for capacity: " + why
	}
	return f
}

// reports returns copies that the caller may read.
func (f filter) reports(reports Reports) Reports {
	shown := slices.Clone(reports)
	for i := range shown {
		r := &shown[i]
		r.Conditions = slices.Clone(r.Conditions)
		for j := range r.Conditions {
			c := &r.Conditions[j]
			c.Message = f.message(c.Type, c.Status, c.Reason, c.Message)
		}
		r.Data, r.Metadata = f.object(r.Data), f.object(r.Metadata)
	}
	return shown
}

func (f filter) conditions(of []clm.ResourceCondition) []clm.ResourceCondition {
	shown := slices.Clone(of)
	for i := range shown {
		c := &shown[i]
		c.Message = f.message(c.Type, c.Status, c.Reason, c.Message)
	}
	return shown
}

// message is a condition's message. Reports that were made before placement had
// words for customers list the management clusters with what is free there, so
// the reason alone decides.
func (f filter) message(kind, status, reason, message string) string {
	switch {
	case message == "":
		return ""
	case reason == "NoCapacity":
		return f.why
	case reason == "WaitingForPlacement":
		return beingPlaced
	case f.see == HidePlacement && (strings.HasPrefix(reason, "ExecutionFailed") || kind == "Health" &&
		status != "True"):
		return failedStep
	}
	return f.text(message)
}

// text replaces the names of the resource's management clusters.
func (f filter) text(s string) string {
	if f.see == ShowPlacement {
		return s
	}
	for _, name := range f.hosts {
		s = replaceWord(s, "management cluster "+name, "a management cluster")
		s = replaceWord(s, name, "the management cluster")
	}
	return s
}

// object replaces the names in each text of an object.
func (f filter) object(raw json.RawMessage) json.RawMessage {
	if f.see == ShowPlacement || len(f.hosts) == 0 || len(raw) == 0 {
		return raw
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil // what cannot be read cannot be checked
	}
	out, err := json.Marshal(f.value(v))
	if err != nil {
		return nil
	}
	return out
}

func (f filter) value(v any) any {
	switch v := v.(type) {
	case string:
		return f.text(v)
	case []any:
		for i := range v {
			v[i] = f.value(v[i])
		}
	case map[string]any:
		for key, x := range v {
			if key != "endpoint" { // the address of the cluster's own API
				v[key] = f.value(x)
			}
		}
	}
	return v
}

// replaceWord replaces a word where no letter of a longer name is beside it.
func replaceWord(s, word, by string) string {
	var out strings.Builder
	for from := 0; ; {
		i := strings.Index(s[from:], word)
		if i < 0 {
			if out.Len() == 0 {
				return s
			}
			out.WriteString(s[from:])
			return out.String()
		}
		begin, end := from+i, from+i+len(word)
		out.WriteString(s[from:begin])
		if inName(s, begin-1, -1) || inName(s, end, 1) {
			out.WriteString(word)
		} else {
			out.WriteString(by)
		}
		from = end
	}
}

// inName says that the byte at i belongs to a longer name. A full stop does
// where the name goes on behind it, as in a host name, and not at the end of a
// sentence.
func inName(s string, i, direction int) bool {
	if i < 0 || i >= len(s) {
		return false
	}
	if s[i] == '.' {
		i += direction
	}
	if i < 0 || i >= len(s) {
		return false
	}
	b := s[i]
	return b == '-' || b == '_' || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// Readable are reports without what the caller may not read, for the texts in
// them.
func Readable(reports []clm.AdapterStatus, see Placement) []clm.AdapterStatus {
	return filterOf(see, nil, reports).reports(reports)
}
