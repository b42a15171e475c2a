package local

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// Status is what `atoll status -o json` prints.
type Status struct {
	Region    string            `json:"region"`
	Home      string            `json:"home"`
	Ready     bool              `json:"ready"`
	Processes []ProcessStatus   `json:"processes"`
	Planes    []PlaneStatus     `json:"planes"` // of customers
	Endpoints map[string]string `json:"endpoints"`
	Insecure  map[string]string `json:"insecure,omitempty"` // listeners without authentication
}

// ProcessStatus is one process; State is ready, starting, failed (waiting to
// be started again) or stopped.
type ProcessStatus struct {
	Name     string `json:"name"`
	PID      int    `json:"pid"`
	State    string `json:"state"`
	Restarts int    `json:"restarts"`
	RSSBytes int64  `json:"rss_bytes"`
	Address  string `json:"address,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Status reads the record of each process, and asks each running process whether it serves.
func (h Home) Status(ctx context.Context) (Status, error) {
	st, err := h.State()
	if err != nil {
		return Status{}, err
	}
	t := newTopology(h, st, Binaries{})
	specs := t.specs()
	processes := make([]ProcessStatus, len(specs)+1)
	supervisor, _ := h.readRecord(supervisorName)
	processes[0] = h.processStatus(ctx, Spec{Name: supervisorName}, supervisor)
	var wg sync.WaitGroup
	for i, spec := range specs {
		wg.Go(func() {
			r, _ := h.readRecord(spec.Name)
			processes[i+1] = h.processStatus(ctx, spec, r)
		})
	}
	wg.Wait()
	var insecure map[string]string
	if st.Insecure {
		insecure = map[string]string{"maestro_http": "http://" + t.address(plainHTTP), "maestro_grpc": t.address(
			plainGRPC), "clm": "http://" + t.address(plainCLM)}
	}
	return Status{
		Insecure: insecure,
		Region:   st.Region, Home: h.Dir,
		Ready:     !slices.ContainsFunc(processes[1:], func(p ProcessStatus) bool { return p.State != "ready" }),
		Processes: processes,
		Planes:    h.planes(st.ID),
		Endpoints: map[string]string{
			"platform_api": t.url("platform"),
			"maestro_http": t.url("maestro-http"),
			"maestro_grpc": t.address("maestro-grpc"),
			"clm":          t.url(clmPort),
			"mqtt":         "mqtts://" + t.address("mqtt"),
		},
	}, nil
}

func (h Home) processStatus(ctx context.Context, spec Spec, r Record) ProcessStatus {
	p := ProcessStatus{Name: spec.Name, State: "stopped", Restarts: r.Restarts, Address: spec.Address}
	switch {
	case r.isAlive():
		p.PID, p.RSSBytes, p.State = r.PID, residentBytes(spec.Name, r.PID), "ready"
		if spec.Ready != nil {
			if err := spec.Ready(ctx); err != nil {
				p.State, p.Reason = "starting", strings.TrimSpace(err.Error())
			}
		}
	case r.Backoff != "":
		p.State, p.Reason = "failed", r.Backoff
	}
	return p
}
