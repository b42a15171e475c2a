package access

import (
	"slices"
	"testing"

	"atoll.dev/pki"
)

func TestWhoMayCallWhom(t *testing.T) {
	callers := map[Callee][]pki.Name{
		MaestroHTTP:  {"system:platform", "system:adapter", "system:clm", "system:operator"},
		MaestroGRPC:  {"system:platform", "system:adapter"},
		CLM:          {"system:platform", "system:adapter", "system:clm", "system:maestro", "system:operator"},
		"unheard-of": nil,
	}
	for callee, want := range callers {
		for _, peer := range []pki.Name{
			"system:platform", "system:operator", "system:adapter", "system:clm", "system:maestro", "system:broker",
			"system:", "platform", "management-01", "",
		} {
			if got := MayCall(callee, peer); got != slices.Contains(want, peer) {
				t.Errorf("%s calls %s: %v", peer, callee, got)
			}
		}
	}
}
