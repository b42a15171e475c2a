package work

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// SeenData is the data of Seen.
type SeenData struct {
	// Hosting is the report of hosting on the agent's management cluster; nil when there is none.
	Hosting *HostingReport `json:"hosting,omitempty"`
}

// HostingReport has figures of hosting on a management cluster, for operators. Hosting writes it into the ConfigMap
// HostingReportName, the agent sends it with its heartbeats, and Maestro reports it to the lifecycle manager. No
// decision depends on it: it may be old, and a management cluster can write what it wants.
type HostingReport struct {
	WarmPlanes int `json:"warm_planes"` // planes that run and wait for new clusters, or that start for that
	// Capacity is the capacity that hosting was started with (atoll hosting --capacity), by resource; nil without one.
	Capacity map[string]int64 `json:"capacity,omitempty"`
}

// Where hosting writes its report in a management cluster.
const (
	HostingReportNamespace = "atoll-hosting"
	HostingReportName      = "hosting-report" // a ConfigMap
	HostingReportKey       = "report.json"    // of its data: a HostingReport
	// HostingWriteKey is the key of a random text, which hosting changes with each write, also of an unchanged report.
	// So while hosting runs, the resource version changes at least every HostingRewriteEvery. The text has no other
	// meaning.
	HostingWriteKey = "write"
)

const (
	// HostingRewriteEvery is how often hosting writes an unchanged report.
	HostingRewriteEvery = 10 * time.Minute
	// MaxHostingReportAge is how long the agent sends a report whose resource version does not change, by its own clock.
	// After that time hosting has missed two writes, or the agent has failed to read them.
	MaxHostingReportAge = 25 * time.Minute
)

// Bounds of a report that is accepted.
const (
	maxHostingReport = 4 << 10 // bytes
	maxResources     = 20
	maxFigure        = 1 << 40
)

// resourceForm is the form of a resource's name, such as memory_mib or nvidia.com/gpu. It permits only characters that
// each store and reader of the report accepts: one that refuses a name would refuse the presence of the agent with it.
var resourceForm = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,63}$`)

// ParseHostingReport parses and checks a report. The error says what is wrong with it.
func ParseHostingReport(data []byte) (r HostingReport, err error) {
	if len(data) > maxHostingReport {
		return r, fmt.Errorf("the report of hosting has %d bytes; the largest has %d", len(data), maxHostingReport)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return HostingReport{}, fmt.Errorf("reading the report of hosting: %w", err)
	}
	return r, r.check()
}

// check returns an error when the report exceeds the bounds above or has a name in another form than resourceForm.
func (r HostingReport) check() error {
	if r.WarmPlanes < 0 || r.WarmPlanes > maxFigure {
		return errors.New("the report of hosting has a figure that is not possible")
	}
	if err := CheckCapacity(r.Capacity); err != nil {
		return fmt.Errorf("the report of hosting: capacity: %w", err)
	}
	return nil
}

// CheckCapacity returns an error that says why a report with this capacity would be refused: too many resources, a name
// in another form than resourceForm, or an amount out of bounds.
func CheckCapacity(capacity map[string]int64) error {
	if len(capacity) > maxResources {
		return fmt.Errorf("%d resources; at most %d are possible", len(capacity), maxResources)
	}
	for name, n := range capacity {
		if !resourceForm.MatchString(name) {
			return fmt.Errorf("%.80q is no name of a resource; a name has 1 to 63 letters, digits, and _ . / -", name)
		}
		if n < 0 || n > maxFigure {
			return fmt.Errorf("%s: %d is not possible; 0 is the least and %d the most", name, n, int64(maxFigure))
		}
	}
	return nil
}

// ParseSeen returns the report of hosting in the data of a Seen event, checked; nil when there is none. The data may be
// empty.
func ParseSeen(data []byte) (*HostingReport, error) {
	var seen struct {
		Hosting json.RawMessage `json:"hosting"`
	}
	if len(data) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(data, &seen); err != nil {
		return nil, fmt.Errorf("reading a heartbeat: %w", err)
	}
	if len(seen.Hosting) == 0 || string(seen.Hosting) == "null" {
		return nil, nil
	}
	r, err := ParseHostingReport(seen.Hosting)
	if err != nil {
		return nil, err
	}
	return &r, nil
}
