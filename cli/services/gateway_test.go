package services

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// The flags of ACME need each other, and refuse what no ACME server certifies.
func TestFlagsOfACMENeedEachOther(t *testing.T) {
	const directory = "--acme-directory=https://acme.example.com/directory"
	cache := "--acme-cache=" + filepath.Join(t.TempDir(), "acme")
	for _, c := range []struct {
		args []string
		want string // of the error; "" when there is none
	}{
		{nil, ""},
		{[]string{directory, "--acme-name=api.example.com", cache}, ""},
		{[]string{directory, "--acme-name=api.example.com"}, "--acme-cache"},
		{[]string{directory, cache}, "--acme-name"},
		{[]string{"--acme-name=api.example.com", cache}, "--acme-directory"},
		{[]string{directory, "--acme-name=127.0.0.1", cache}, "not a DNS name"},
	} {
		f, cmd := gatewayFlags{}, &cobra.Command{}
		f.addFlags(cmd)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		g, err := f.open(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if c.want == "" {
			if err != nil || (g.acme != nil) != (len(c.args) > 0) {
				t.Errorf("%q: %+v, %v", c.args, g, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}
}
