package bundle

import (
	"encoding/json"
	"fmt"

	api "atoll.dev/api/maestro"
	"atoll.dev/store"
)

// Consumer is the stored form of a consumer; its name is the document's.
type Consumer struct {
	Labels map[string]string `json:"labels,omitempty"`
}

// RenderConsumer renders the REST form of a consumer without the observed members.
func RenderConsumer(d store.Document) ([]byte, error) {
	var spec Consumer
	if err := json.Unmarshal(d.Spec, &spec); err != nil {
		return nil, fmt.Errorf("reading consumer %s: %w", d.ID, err)
	}
	return Marshal(api.Consumer{
		ID: d.ID, Kind: "Consumer", Href: api.BasePath + "/consumers/" + d.ID, Name: d.Name,
		Labels: spec.Labels, CreatedAt: d.CreatedAt.UTC(), UpdatedAt: d.UpdatedAt.UTC(),
	})
}
