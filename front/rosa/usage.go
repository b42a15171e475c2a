package rosa

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/api/platform"
)

// usageByName is what management clusters take and have, by their names; nothing when
// the lifecycle manager cannot say: then they are shown as Maestro has them.
func (f *front) usageByName(ctx context.Context) map[string]fleet.Usage {
	byName := map[string]fleet.Usage{}
	if f.clm == nil {
		return byName
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	all, err := f.clm.Usage(ctx)
	if err != nil {
		return byName
	}
	for _, u := range all {
		byName[u.Name] = u
	}
	return byName
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
	more, err := json.Marshal(struct {
		State      fleet.ManagementClusterState `json:"state"`
		Capacity   platform.Capacity            `json:"capacity"`
		Reserved   platform.Capacity            `json:"reserved"`
		Versions   platform.PlaneVersions       `json:"versions,omitempty"`
		Placements int                          `json:"placements"`
	}{u.State, u.Capacity, u.Reserved, u.Versions, u.Placements})
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
