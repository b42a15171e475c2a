package maestroclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
)

const pathUnknownWorks = "/api/maestro/v1/unknown-works"

// ForceDeleteBundle deletes a bundle without its agent's acknowledgement. Maestro records the reason.
// A bundle that does not exist is no error.
func (m *Client) ForceDeleteBundle(ctx context.Context, id work.ID, reason string) error {
	_, _, err := m.rest.Do(ctx, remote.Request{
		Method: http.MethodDelete, Path: pathBundles + "/" + url.PathEscape(string(id)), Query: url.Values{"force": {"true"},
			"reason": {reason}},
	})
	return err
}

// UnknownWorks returns one page of the works that agents have and Maestro has no bundle for.
func (m *Client) UnknownWorks(ctx context.Context, o remote.ListOptions) (maestro.UnknownWorkList, error) {
	var list maestro.UnknownWorkList
	doc, err := m.get(ctx, pathUnknownWorks, o.Values())
	if err != nil {
		return list, err
	}
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return list, fmt.Errorf("reading Maestro's list of unknown works: %w", err)
	}
	return list, nil
}

// AllUnknownWorks returns the unknown works of one management cluster, or of all when consumer is
// empty.
func (m *Client) AllUnknownWorks(ctx context.Context, consumer work.Consumer) ([]maestro.UnknownWork, error) {
	query := remote.ListOptions{Page: 1, Size: 1000, OrderBy: "consumer_name, id"}
	if consumer != "" {
		query.Search = remote.SearchEqual("consumer_name", string(consumer))
	}
	all := []maestro.UnknownWork{}
	for {
		list, err := m.UnknownWorks(ctx, query)
		if err != nil {
			return nil, err
		}
		if all = append(all, list.Items...); len(list.Items) < query.Size {
			return all, nil
		}
		query.Page++
	}
}

// AdoptUnknownWork creates a bundle of a source from a work that an agent has. adopted is false when
// the agent has not reported the work's content yet: Maestro creates the bundle after the report.
// The error has status 404 when there is no such work.
func (m *Client) AdoptUnknownWork(ctx context.Context, consumer work.Consumer, id work.ID, source,
	reason string) (adopted bool, err error) {
	body, err := json.Marshal(maestro.Adoption{Source: source, Reason: reason})
	if err != nil {
		return false, err
	}
	doc, _, err := m.rest.Do(ctx, remote.Request{Method: http.MethodPost, Path: unknownWorkPath(consumer, id) + "/adopt",
		Body: body})
	if err != nil {
		return false, err
	}
	var answer struct{ Kind string }
	if err := json.Unmarshal(doc.JSON, &answer); err != nil {
		return false, fmt.Errorf("reading Maestro's answer: %w", err)
	}
	return answer.Kind == "ResourceBundle", nil
}

// DeleteUnknownWork orders the agent to delete a work. A work that does not exist is no error.
func (m *Client) DeleteUnknownWork(ctx context.Context, consumer work.Consumer, id work.ID, reason string) error {
	_, _, err := m.rest.Do(ctx, remote.Request{Method: http.MethodDelete, Path: unknownWorkPath(consumer, id),
		Query: url.Values{
			"reason": {reason}}})
	return err
}

func unknownWorkPath(consumer work.Consumer, id work.ID) string {
	return pathUnknownWorks + "/" + url.PathEscape(string(consumer)) + "/" + url.PathEscape(string(id))
}
