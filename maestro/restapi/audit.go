package restapi

import (
	"net/http"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/records"
	"atoll.dev/pki"
	"atoll.dev/store/auditfeed"
)

// listAudit serves the audit records to the Platform API, which proves itself by its certificate.
func (h *handlers) listAudit(w http.ResponseWriter, r *http.Request) error {
	if peer, err := pki.PeerName(r.TLS); err != nil || peer != records.PlatformName {
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden,
			"only the Platform API reads this feed; read the region's audit with: atoll audit list")
	}
	return auditfeed.Handler(h.Store)(w, r)
}
