package customer

import (
	"bytes"
	"strings"
	"testing"

	"atoll.dev/cli/terminal"
)

func TestImageLoadNeedsTheClusterAndOneFile(t *testing.T) {
	for want, args := range map[string][]string{
		`required flag(s) "cluster" not set`: {"load", "shop.tar"},
		"accepts 1 arg(s), received 0":       {"load", "--cluster", "demo"},
	} {
		var out bytes.Buffer
		cmd := Image(&terminal.Session{Out: &out, Err: &out})
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one with %q", args, err, want)
		}
	}
}
