package clm

import (
	"strings"

	"atoll.dev/internal/rest"
)

// Readiness is the body of /readyz, hyperfleet-api's, with what is missing in
// full beside its reason.
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
