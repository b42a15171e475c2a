package clm

import (
	"cmp"
	"net"
	"net/http"
	"strings"

	"atoll.dev/api/audit"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// auditedRequest returns the description of a request for the audit records of its changes. It is "" for requests
// whose changes only the history records: reports of adapters, the leases of their replicas, and other requests that
// a service of the region makes for no caller.
func auditedRequest(r *http.Request, pattern string, c Caller) string {
	_, path, _ := strings.Cut(pattern, " ")
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead || c.Service && c.Name != string(operatorName):
		return ""
	case strings.HasSuffix(path, "/statuses") || strings.HasSuffix(path, "/members/{member}"):
		return ""
	}
	request := c.Proof
	if request.Action != "" { // a front has sent all members
		return request.Encode()
	}
	request.Proof, request.Method, request.Route = cmp.Or(request.Proof, audit.Unproven), r.Method, path
	request.Source, request.UserAgent = r.RemoteAddr, r.UserAgent()
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		request.Source = host
	}
	return request.Encode()
}

// accountOf returns the account that owns a resource: the tenant of a region whose tenants are accounts.
func accountOf(d store.Document) string {
	spec, err := declaredOf(d)
	if err != nil {
		return ""
	}
	return spec.Tenancy["account"]
}

// Identities of the Platform API and of operators.
var (
	platformName = pki.ServiceName("platform")
	operatorName = pki.ServiceName("operator")
)

// mayReadAudit admits the Platform API, which gathers the audit records of the region.
func mayReadAudit(c Caller) error {
	if c.Service && c.Name == string(platformName) {
		return nil
	}
	return rest.Errorf(http.StatusForbidden, codeForbidden,
		"only the Platform API reads this feed; read the region's audit with: atoll audit list")
}
