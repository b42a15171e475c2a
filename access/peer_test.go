package access

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"atoll.dev/internal/rest"
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

func TestRequirePeerWantsAVerifiedCertificate(t *testing.T) {
	named := func(name string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: name}}
	}
	verified := func(name string) *tls.ConnectionState {
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{named(name)},
			VerifiedChains: [][]*x509.Certificate{{named(name)}}}
	}
	for name, tc := range map[string]struct {
		state *tls.ConnectionState
		want  int
	}{
		"plain":          {nil, 401},
		"no certificate": {&tls.ConnectionState{}, 401},
		"shown, not verified": {&tls.ConnectionState{PeerCertificates: []*x509.Certificate{named("system:platform")}},
			401},
		"name that is no name": {verified("system:Platform "), 401},
		"an agent":             {verified("management-01"), 403},
		"platform":             {verified("system:platform"), 204},
	} {
		ran := false
		h := RequirePeer(MaestroHTTP, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			ran = true
			w.WriteHeader(http.StatusNoContent)
		}))
		r := httptest.NewRequest("GET", "/", nil)
		r.TLS = tc.state
		w := httptest.NewRecorder()
		rest.Observe(rest.Options{Log: quiet}, h).ServeHTTP(w, r)
		if w.Code != tc.want || ran != (tc.want == 204) {
			t.Errorf("%s: %d, handler ran: %v", name, w.Code, ran)
		}
	}
}
