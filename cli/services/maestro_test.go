package services

import (
	"testing"

	"atoll.dev/maestro"
)

// The lifecycle manager and operators use Maestro's REST API only: over gRPC
// their certificates may not act as sources.
func TestI10RESTAndGRPCOfMaestroHaveSeparateCallers(t *testing.T) {
	var o maestro.Options
	admitServices(&o)
	for peer, want := range map[string]struct{ rest, grpc bool }{
		"system:platform": {true, true},
		"system:adapter":  {true, true},
		"system:clm":      {true, false},
		"system:operator": {true, false},
		"system:broker":   {false, false},
		"management-01":   {false, false},
	} {
		if rest, grpc := o.MayCall(peer), o.MayCallGRPC(peer); rest != want.rest || grpc != want.grpc {
			t.Errorf("%s: REST %v, gRPC %v; want %+v", peer, rest, grpc, want)
		}
	}
}
