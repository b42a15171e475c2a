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

// The ports that ask the table.
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

// Operator is the identity of a person who operates the region, as its command
// line uses it.
var Operator = pki.ServiceName("operator")

// mayCall is the one table of who may call whom between the region's services.
// What it does not list is refused.
var mayCall = map[Callee][]pki.Name{
	MaestroHTTP: {platform, adapter, clm, Operator},
	MaestroGRPC: {platform, adapter},
	CLM:         {platform, adapter, clm, maestro, Operator},
}

// MayCall says whether the holder of the certificate of peer may call callee.
// It decides for HTTP, gRPC and whatever comes; the name must be one that was
// proved, as pki.PeerName returns it.
func MayCall(callee Callee, peer pki.Name) bool {
	return slices.Contains(mayCall[callee], peer)
}

// OnlyReports says of one that may call callee that it reads and reports, and
// changes nothing else.
func OnlyReports(callee Callee, peer pki.Name) bool { return callee == CLM && peer == maestro }

// Peer returns who is at the other side of a connection, if it may call
// callee; for gRPC and other protocols than HTTP. The error is a *rest.Error
// with status 401 or 403.
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

// RequirePeer lets only those through to next who may call callee. The
// server's TLS configuration must verify client certificates against the
// region's CA; one that was merely shown does not count.
func RequirePeer(callee Callee, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := Peer(callee, r.TLS); err != nil {
			rest.Fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
