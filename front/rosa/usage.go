package rosa

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
)

// usageIfAvailable returns the usage of management clusters by their names, and nothing when the lifecycle
// manager does not answer within a second: then this API shows management clusters as Maestro has them.
func (f *front) usageIfAvailable(ctx context.Context) map[string]fleet.Usage {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	usage, err := f.usageByName(ctx)
	if err != nil {
		return nil
	}
	return usage
}

// usageByName returns the usage of management clusters by their names. The error is 503 when the lifecycle manager does
// not answer. A region without a lifecycle manager has no usage.
func (f *front) usageByName(ctx context.Context) (map[string]fleet.Usage, error) {
	byName := map[string]fleet.Usage{}
	if f.clm == nil {
		return byName, nil
	}
	all, err := f.clm.Usage(ctx)
	if err != nil { // 404: the lifecycle manager has no such kind
		return byName, clmError(err, http.StatusNotFound)
	}
	for _, u := range all {
		byName[u.Name] = u
	}
	return byName, nil
}

// withUsage adds usage to a management cluster, or to each of a list, and keeps
// every other member byte by byte.
func withUsage(document json.RawMessage, usage map[string]fleet.Usage) (json.RawMessage, error) {
	if len(usage) == 0 {
		return document, nil
	}
	var object map[string]json.RawMessage
	var known struct {
		Name  string
		Items *[]json.RawMessage
	}
	if err := json.Unmarshal(document, &object); err != nil {
		return nil, fmt.Errorf("reading management clusters: %w", err)
	}
	if err := json.Unmarshal(document, &known); err != nil {
		return nil, fmt.Errorf("reading management clusters: %w", err)
	}
	if known.Items != nil {
		items := *known.Items
		for i := range items {
			var err error
			if items[i], err = withUsage(items[i], usage); err != nil {
				return nil, err
			}
		}
		list, err := json.Marshal(items)
		object["items"] = list
		if err != nil {
			return nil, err
		}
		return json.Marshal(object)
	}
	u, ok := usage[known.Name]
	if !ok {
		return document, nil
	}
	var hosting *platform.HostingFigures
	if u.Hosting != nil {
		hosting = &platform.HostingFigures{WarmPlanes: u.Hosting.WarmPlanes, Capacity: u.Hosting.Capacity}
	}
	more, err := json.Marshal(struct {
		State      fleet.ManagementClusterState `json:"state"`
		Capacity   platform.Capacity            `json:"capacity"`
		Reserved   platform.Capacity            `json:"reserved"`
		Versions   platform.PlaneVersions       `json:"versions,omitempty"`
		Placements int                          `json:"placements"`
		Hosting    *platform.HostingFigures     `json:"hosting,omitempty"`
	}{u.State, u.Capacity, u.Reserved, u.Versions, u.Placements, hosting})
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(more, &object); err != nil {
		return nil, err
	}
	// Maestro stores the time at intervals; the lifecycle manager may know a new
	// agent earlier.
	if _, seen := object["last_seen_at"]; !seen && u.LastSeenTime != nil {
		if object["last_seen_at"], err = json.Marshal(u.LastSeenTime); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}
