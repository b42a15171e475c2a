package sentinel

import (
	"context"
	"net/http"
	"time"

	"atoll.dev/internal/rest"
)

// View is a resource in the table of a replica, as GET /sentinel shows it. An
// unknown time is absent.
type View struct {
	ID         string `json:"id"`
	Kind       string `json:"kind"`
	Slot       int    `json:"slot"`
	Generation int64  `json:"generation"`
	// Published is the generation of the last event; 0 before the first event.
	Published   int64      `json:"told_generation"`
	PublishedAt *time.Time `json:"last_event_time,omitempty"`
	Attempts    int        `json:"attempts"`                // events since the last progress
	Pending     bool       `json:"pending"`                 // the sentinel has to send an event, or to repeat it
	Sending     bool       `json:"sending"`                 // an event is in flight to the broker
	Due         *time.Time `json:"next_due_time,omitempty"` // of the next event; absent: only a change causes one
}

// Lookup returns the resources with an id in the slots of this replica, of every kind;
// none when another replica has the slots, and none when the loop of the sentinel does
// not answer within a second.
func (s *Sentinel) Lookup(ctx context.Context, id string) []View {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	known := func(i instant) *time.Time {
		if i == 0 {
			return nil
		}
		t := i.time()
		return &t
	}
	found := make(chan []View, 1)
	s.mail.post(func() {
		all := []View{}
		for _, kind := range s.kinds {
			if r := s.table.all[key{kind, id}]; r != nil {
				all = append(all, View{
					ID: id, Kind: string(kind), Slot: int(r.slot), Generation: r.Generation,
					Published: r.Published, PublishedAt: known(r.PublishedAt), Attempts: int(r.Attempts),
					Pending: isPending(r.State), Sending: r.Sending, Due: known(r.Due),
				})
			}
		}
		found <- all
	})
	select {
	case all := <-found:
		return all
	case <-ctx.Done():
		return nil
	}
}

// serveLookup handles GET /sentinel?id=ID.
func (s *Sentinel) serveLookup(w http.ResponseWriter, r *http.Request) error {
	id := r.URL.Query().Get("id")
	all := s.Lookup(r.Context(), id)
	if len(all) == 0 {
		return rest.Errorf(http.StatusNotFound, "not-here", "no resource %.100q is in the slots of this replica", id)
	}
	return rest.WriteJSON(w, http.StatusOK, map[string]any{"items": all})
}
