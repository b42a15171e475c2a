package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// consumerSpec is the stored form of a consumer; its name is the document's.
type consumerSpec struct {
	Labels map[string]string `json:"labels,omitempty"`
}

// renderConsumer makes the REST form of a consumer, less what is observed.
func renderConsumer(d store.Document) ([]byte, error) {
	var spec consumerSpec
	if err := json.Unmarshal(d.Spec, &spec); err != nil {
		return nil, fmt.Errorf("reading consumer %s: %w", d.ID, err)
	}
	return marshal(api.Consumer{
		ID: d.ID, Kind: "Consumer", Href: basePath + "/consumers/" + d.ID, Name: d.Name,
		Labels: spec.Labels, CreatedAt: d.CreatedAt.UTC(), UpdatedAt: d.UpdatedAt.UTC(),
	})
}

func (s *Server) createConsumer(ctx context.Context, req api.ConsumerCreate) (store.Document, error) {
	if err := s.accepting(); err != nil {
		return store.Document{}, err
	}
	if req.ID != "" {
		return store.Document{}, invalid("id must be empty")
	}
	id := uuid.NewString()
	name := req.Name
	if name == "" {
		name = id
	}
	if err := checkConsumerName(name); err != nil {
		return store.Document{}, err
	}
	if err := checkConsumerLabels(req.Labels); err != nil {
		return store.Document{}, err
	}
	spec, err := marshal(consumerSpec{Labels: req.Labels})
	if err != nil {
		return store.Document{}, err
	}
	d, err := s.store.Create(ctx, store.Document{Kind: kindConsumer, ID: id, Name: name, Spec: spec})
	if errors.Is(err, store.ErrExists) {
		return d, rest.Errorf(http.StatusConflict, codeConflict, "This Consumer already exists: %s", name)
	}
	if err != nil {
		return d, err
	}
	// Its agent may be there, from before the database was lost, and hold works
	// (I8). Nobody else asks it; one that is away says it when it comes.
	if err := s.sendDigest(ctx, name, work.DigestAnswer{Ask: true}); err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "the agent of a new consumer was not asked", slog.String("consumer", name),
			slog.Any("error", err))
	}
	return d, nil
}

func (s *Server) patchConsumer(ctx context.Context, id string, ifMatch int64, req api.ConsumerPatch) (store.Document,
	error) {
	if err := s.accepting(); err != nil {
		return store.Document{}, err
	}
	if req.Labels != nil {
		if err := checkConsumerLabels(*req.Labels); err != nil {
			return store.Document{}, err
		}
	}
	d, _, err := s.store.Update(ctx, kindConsumer, id, ifMatch, func(d *store.Document) error {
		if req.Labels == nil {
			return nil
		}
		spec, err := marshal(consumerSpec{Labels: *req.Labels})
		d.Spec = spec
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, notFound("Consumer", id)
	}
	return d, err
}

// deleteConsumer removes a consumer that has no bundles, bundles under
// deletion included. One that is not there is no error.
func (s *Server) deleteConsumer(ctx context.Context, id string, ifMatch int64) error {
	if err := s.accepting(); err != nil {
		return err
	}
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.Get(ctx, kindConsumer, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := lockConsumer(ctx, tx, d.Name, true); err != nil {
			return err
		}
		var bundles int
		err = tx.QueryRow(ctx, `select count(*) from ledger where consumer = $1 and gone_at is null`, d.Name).Scan(
			&bundles)
		if err != nil {
			return err
		}
		if bundles > 0 {
			return rest.Errorf(http.StatusForbidden, codeForbidden,
				"consumer %s has %d resource bundles, those under deletion included; delete them and wait until its "+
					"agent has confirmed", d.Name, bundles)
		}
		if err := noteUnknown(ctx, tx, d.Name, []string{}, nil, nil); err != nil {
			return err
		}
		for _, table := range []string{"agent_digest", "agent_compared", "agent_seen"} {
			if _, err := tx.Exec(ctx, `delete from `+table+` where consumer = $1`, d.Name); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `update ledger set unconfirmed = false where consumer = $1 and unconfirmed`,
			d.Name); err != nil {
			return err
		}
		err = tx.Remove(ctx, kindConsumer, id, ifMatch)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}

// observed adds to a consumer's REST form what is no content of it: when it
// was last heard, and what is known of what it holds.
func observed(d store.Document, h holdings) (json.RawMessage, error) {
	if h == (holdings{}) {
		return d.Wire, nil
	}
	var c api.Consumer
	if err := json.Unmarshal(d.Wire, &c); err != nil {
		return nil, fmt.Errorf("reading consumer %s: %w", d.ID, err)
	}
	if h.seenAt != nil {
		seen := h.seenAt.UTC().Truncate(time.Millisecond)
		c.LastSeenAt = &seen
	}
	if h.comparedAt != nil {
		at := h.comparedAt.UTC().Truncate(time.Millisecond)
		c.ComparedAt = &at
	}
	c.UnknownWorks = h.unknown
	return marshal(c)
}
