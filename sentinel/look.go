package sentinel

import (
	"context"
	"net/http"
	"time"

	"atoll.dev/internal/rest"
)

// View is what a replica knows of a resource of its slots. Times that are not
// known are absent.
type View struct {
	ID         string     `json:"id"`
	Kind       string     `json:"kind"`
	Slot       int        `json:"slot"`
	Generation int64      `json:"generation"`
	Told       int64      `json:"told_generation"` // of the last event; 0: of none
	ToldTime   *time.Time `json:"last_event_time,omitempty"`
	Attempts   int        `json:"attempts"` // events since there was progress
	Pending    bool       `json:"pending"`  // it needs an event, or more of them
	Sending    bool       `json:"sending"`
	Due        *time.Time `json:"next_due_time,omitempty"` // absent: when something happens
}

// Look returns what this replica knows of the resources of an id; none when they
// are another's.
func (s *Sentinel) Look(ctx context.Context, id string) []View {
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
					ID: id, Kind: string(kind), Slot: int(
						r.slot), Generation: r.Generation, Told: r.Told, ToldTime: known(r.ToldAt),
					Attempts: int(r.Attempts), Pending: pending(r.State), Sending: r.Sending, Due: known(r.Due),
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

// look answers GET /sentinel?id=.
func (s *Sentinel) look(w http.ResponseWriter, r *http.Request) error {
	id := r.URL.Query().Get("id")
	all := s.Look(r.Context(), id)
	if len(all) == 0 {
		return rest.Errorf(http.StatusNotFound, "not-here", "no resource %.100q is in the slots of this replica", id)
	}
	return rest.WriteJSON(w, http.StatusOK, map[string]any{"items": all})
}
