package progress

import (
	"encoding/json"
	"slices"
	"strings"

	"atoll.dev/api/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/jsonvalue"
)

// Visibility decides whether a caller may read which management cluster hosts a
// cluster. No caller reads about other management clusters, their names, their
// free capacity or their number: operators read that at the lifecycle manager.
type Visibility uint8

const (
	HidePlacement Visibility = iota
	ShowPlacement
)

const (
	// noRoom replaces the message of a cluster that waits for capacity when the
	// report has no words for the cluster's owner.
	noRoom = "waiting for capacity: the region has no room for the cluster at present"

	// placementPending is the message of a cluster without a placement.
	placementPending = "a management cluster is being chosen"

	// failedStep replaces the message of an adapter's internal error.
	failedStep = "a step failed inside the region; it is tried again"
)

// Filter returns copies of the reports without the parts that the caller may not
// read: names of management clusters and internal errors.
func Filter(reports []clm.AdapterStatus, visibility Visibility) cluster.Reports {
	f := newFilter(visibility, nil, reports)
	shown := f.reports(reports)
	if visibility != ShowPlacement {
		for i := range shown {
			shown[i].Data = removeMembers(shown[i].Data, "management_cluster", "target_cluster")
		}
	}
	return shown
}

// filter removes from texts and reports the parts that a caller may not read.
type filter struct {
	visibility Visibility
	hosts      []cluster.ManagementCluster // that hosted the resource, the longest name first; none with ShowPlacement
	reported   cluster.Reports             // unfiltered
}

// newFilter returns the filter of one resource. known are management clusters
// that hosted the resource before; those of the reports are added. It reads the
// data of reports only when names must be removed.
func newFilter(visibility Visibility, known []cluster.ManagementCluster, reports cluster.Reports) filter {
	f := filter{visibility: visibility, reported: reports}
	if visibility == ShowPlacement {
		return f
	}
	f.hosts = slices.Clone(known)
	for _, name := range reports.ManagementClusters() {
		if !slices.Contains(f.hosts, name) {
			f.hosts = append(f.hosts, name)
		}
	}
	// The filter replaces a longer name before a shorter name that is a part of it.
	slices.SortStableFunc(f.hosts, func(a, b cluster.ManagementCluster) int { return len(b) - len(a) })
	return f
}

// noCapacity returns the message of a cluster that waits for capacity.
func (f filter) noCapacity() string {
	if why := f.reported.Placement().Why; why != "" {
		return "waiting for capacity: " + why
	}
	return noRoom
}

// reports returns copies that the caller may read.
func (f filter) reports(reports cluster.Reports) cluster.Reports {
	shown := f.reportedConditions(reports)
	for i, r := range reports {
		shown[i].Data, shown[i].Metadata = f.object(r.Data), f.object(r.Metadata)
	}
	return shown
}

// reportedConditions returns copies that the caller may read, without data and metadata.
func (f filter) reportedConditions(reports cluster.Reports) cluster.Reports {
	shown := slices.Clone(reports)
	for i := range shown {
		r := &shown[i]
		r.Data, r.Metadata = nil, nil
		r.Conditions = slices.Clone(r.Conditions)
		for j := range r.Conditions {
			c := &r.Conditions[j]
			c.Message = f.message(c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return shown
}

// dataOf returns the report of an adapter with the data that the caller may read, and nothing else, as the only one.
func (f filter) dataOf(adapter cluster.Adapter) cluster.Reports {
	report, ok := f.reported.Find(adapter)
	if !ok {
		return nil
	}
	return cluster.Reports{{Adapter: report.Adapter, Data: f.object(report.Data)}}
}

// conditions returns copies that the caller may read.
func (f filter) conditions(conditions []clm.ResourceCondition) []clm.ResourceCondition {
	shown := slices.Clone(conditions)
	for i := range shown {
		c := &shown[i]
		c.Message = f.message(c.Type, c.Status, c.Reason, c.Message)
	}
	return shown
}

// message returns the part of a condition's message that the caller may read. It
// decides by the reason alone: messages of earlier versions list the management
// clusters with their free capacity.
func (f filter) message(kind, status, reason, message string) string {
	isInternal := cluster.Reason(reason).IsExecutionFailure() ||
		kind == string(cluster.ConditionHealth) && status != cluster.StatusTrue
	switch {
	case message == "":
		return ""
	case cluster.Reason(reason) == cluster.ReasonNoCapacity:
		return f.noCapacity()
	case cluster.Reason(reason) == cluster.ReasonWaitingForPlacement:
		return placementPending
	case f.visibility == HidePlacement && isInternal:
		return failedStep
	}
	return f.text(message)
}

// text replaces the names of the resource's management clusters.
func (f filter) text(s string) string {
	if f.visibility == ShowPlacement {
		return s
	}
	for _, name := range f.hosts {
		s = replaceWord(s, "management cluster "+string(name), "a management cluster")
		s = replaceWord(s, string(name), "the management cluster")
	}
	return s
}

// object replaces the names in each text of a JSON value. A value that cannot be
// decoded is not shown.
func (f filter) object(raw json.RawMessage) json.RawMessage {
	if f.visibility == ShowPlacement || len(f.hosts) == 0 || len(raw) == 0 {
		return raw
	}
	v, err := jsonvalue.Decode(raw)
	if err != nil {
		return nil
	}
	return jsonvalue.AppendCanonical(make([]byte, 0, len(raw)), f.value(v))
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

// replaceWord replaces a word wherever it is not a part of a longer name.
func replaceWord(s, word, replacement string) string {
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
		if isNameByte(s, begin-1, -1) || isNameByte(s, end, 1) {
			out.WriteString(word)
		} else {
			out.WriteString(replacement)
		}
		from = end
	}
}

// isNameByte reports whether the byte at i belongs to a name. A full stop does
// where the name goes on in the direction, as in a host name, and does not at
// the end of a sentence.
func isNameByte(s string, i, direction int) bool {
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

// removeMembers returns a JSON object without some members; nil for JSON that is no
// object.
func removeMembers(raw json.RawMessage, names ...string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return nil
	}
	for _, name := range names {
		delete(members, name)
	}
	out, err := json.Marshal(members)
	if err != nil {
		return nil
	}
	return out
}
