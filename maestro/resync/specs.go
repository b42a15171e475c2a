package resync

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/wire"
)

// event returns a message of the server to an agent, with data as JSON.
func (c *Comparer) event(consumer work.Consumer, kind string, data any) (bus.Event, error) {
	text, err := json.Marshal(data)
	return bus.Event{
		DataContentType: wire.JSONType,
		ID:              uuid.NewString(),
		Source:          c.o.SourceID,
		Type:            kind,
		Time:            time.Now().UTC(),
		Extensions:      map[string]string{work.ExtClusterName: string(consumer)},
		Data:            text,
	}, err
}

// AskSpecs asks an agent for the content of works that it holds. It does not wait for the answer. Agents of Open
// Cluster Management ignore the request.
func (c *Comparer) AskSpecs(ctx context.Context, consumer work.Consumer, ids []work.ID) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m, err := c.event(consumer, work.ServerSpecs, work.SpecsWanted{IDs: ids})
	if err == nil {
		err = c.o.Agents.Publish(ctx, consumer, m)
	}
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "agent not asked for its works", slog.String("consumer", string(consumer)),
			slog.Any("error", err))
	}
}

// askAdoptions asks an agent again for the works that operators want adopted.
func (c *Comparer) askAdoptions(ctx context.Context, consumer work.Consumer) error {
	ids, err := c.o.Ledger.AdoptionsWanted(ctx, consumer)
	if err == nil && len(ids) > 0 {
		c.AskSpecs(ctx, consumer, ids)
	}
	return err
}
