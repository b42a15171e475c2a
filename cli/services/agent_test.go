package services

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"atoll.dev/agent"
)

// A configuration file that names a server and no CA, as Open Cluster Management's test and development hubs have it,
// makes a plain connection. A part of an identity is a mistake: it must not make a connection plain.
func TestAGRPCServerWithoutACAIsPlain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "grpc.yaml")
	if err := os.WriteFile(file, []byte("url: 127.0.0.1:8091\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		identity identityFlags
		want     error
	}{
		"no identity":             {identityFlags{}, nil},
		"an identity without pki": {identityFlags{dir: "identity", caFile: "ca.pem"}, errNoIdentity},
		"a token only":            {identityFlags{tokenFile: "token"}, errNoIdentity},
	} {
		t.Run(name, func(t *testing.T) {
			s := &System{Log: slog.New(slog.DiscardHandler), identity: test.identity}
			o := agent.Options{Consumer: "mc1"}
			var at string
			if err := s.setWorkSource(nil, &o, "grpc", file, &at); !errors.Is(err, test.want) {
				t.Fatalf("%v instead of %v", err, test.want)
			}
			if test.want != nil {
				return
			}
			if at != "127.0.0.1:8091" || o.GRPC == nil || o.GRPC.URL != at || o.GRPC.TLS != nil {
				t.Errorf("the server is %q, the options are %+v", at, o.GRPC)
			}
		})
	}
}
