package access

import (
	"crypto/tls"
	"net/http"
	"slices"

	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// Callee is a port of one of the region's services.
type Callee string

// The ports that decide by the table.
const (
	MaestroHTTP Callee = "maestro-http"
	MaestroGRPC Callee = "maestro-grpc"
	CLM         Callee = "clm"
)

// Identities of services: the Platform API, the lifecycle manager (with the
// sentinel), the processes that run adapters, and Maestro.
var (
	platform = pki.ServiceName("platform")
	clm      = pki.ServiceName("clm")
	adapter  = pki.ServiceName("adapter")
	maestro  = pki.ServiceName("maestro")
)

// Operator is the identity of a person who operates the region. The command line
// uses it.
var Operator = pki.ServiceName("operator")

// mayCall is the one table of which services may call which. A caller that it does
// not list is refused.
var mayCall = map[Callee][]pki.Name{
	MaestroHTTP: {platform, adapter, clm, Operator},
	MaestroGRPC: {platform, adapter},
	CLM:         {platform, adapter, clm, maestro, Operator},
}

// MayCall reports whether the holder of peer's certificate may call callee, over
// HTTP, gRPC or another protocol. The name must be proved, as pki.PeerName returns
// it.
func MayCall(callee Callee, peer pki.Name) bool {
	return slices.Contains(mayCall[callee], peer)
}

// OnlyReports reports whether a peer that may call callee may only read and report.
func OnlyReports(callee Callee, peer pki.Name) bool { return callee == CLM && peer == maestro }

// Peer returns the peer of a TLS connection that may call callee. The error is a
// *rest.Error with status 401 or 403.
func Peer(callee Callee, cs *tls.ConnectionState) (pki.Name, error) {
	peer, err := pki.PeerName(cs)
	if err != nil {
		return "", rest.Errorf(http.StatusUnauthorized, "no-certificate",
			"%s takes callers with a client certificate of this region only; present one", callee).Because(err)
	}
	if !MayCall(callee, peer) {
		return "", rest.Errorf(http.StatusForbidden, "peer-not-allowed", "%s may not call %s", quoted(string(peer)),
			callee)
	}
	return peer, nil
}

// RequirePeer passes only requests of peers that may call callee to next. The
// server's TLS configuration must verify client certificates against the region's
// CA: a certificate that was only sent does not count.
func RequirePeer(callee Callee, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := Peer(callee, r.TLS); err != nil {
			rest.Fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
