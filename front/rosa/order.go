package rosa

import (
	"encoding/json"
	"net/http"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/internal/rest"
)

// readOrder reads a request that orders a step for a cluster: the cluster's id in the path, and the body by parse. The
// error is the answer to a bad request.
func readOrder[T any](c *exchange, parse func(body []byte) (T, document.Problems, error)) (id cluster.ID, want T,
	err error) {
	if id, err = c.readClusterID(); err != nil {
		return id, want, err
	}
	body, err := c.readBody()
	if err != nil {
		return id, want, err
	}
	want, problems, err := parse(body)
	return id, want, c.refusal(problems, err)
}

// parseOrder decodes the body of an order by the rules of its members. what is the name of the order in an error.
func parseOrder[T any](body []byte, what string, rules map[string]document.Rule) (want T, p document.Problems,
	err error) {
	decoded, err := document.Decode(body)
	if err != nil {
		return want, nil, err
	}
	document.Object(rules)(&p, "", decoded)
	if len(p) > 0 {
		return want, p.Sorted(), nil
	}
	if err := json.Unmarshal(body, &want); err != nil {
		return want, nil, rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "the body is no order of %s: %s", what, err)
	}
	return want, nil, nil
}

// timeOf returns a time of a report; nil when the text is none.
func timeOf(text string) *time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil
	}
	return &at
}
