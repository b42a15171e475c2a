package access

import (
	"slices"

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
