package clm

import (
	"strings"

	"atoll.dev/internal/rest"
)

// Readiness returns the body of /readyz in hyperfleet-api's shape, with the complete list
// of failed checks beside the reason.
func Readiness(missing []rest.Missing) any {
	body := struct {
		Status  string         `json:"status"`
		Reason  string         `json:"reason,omitempty"`
		Missing []rest.Missing `json:"missing,omitempty"`
	}{Status: "ok", Missing: missing}
	if len(missing) == 0 {
		return body
	}
	body.Status = "not_ready"
	reasons := make([]string, len(missing))
	for i, m := range missing {
		if reasons[i] = m.Name + ": " + m.Reason; m.Name == rest.Draining {
			body.Status = "shutting_down"
		}
	}
	body.Reason = strings.Join(reasons, "; ")
	return body
}
