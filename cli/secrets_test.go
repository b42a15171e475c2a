package cli

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"atoll.dev/cli/terminal"
)

// secretName matches the names of flags whose values may be secrets.
var secretName = regexp.MustCompile(`pass|secret|token|key|credential|kubeconfig|dsn|^from$`)

// filesByAnotherName are flags that match secretName and name a file, although their name does not
// end with -file. Those of databases are tested below.
var filesByAnotherName = []string{"key", "kubeconfig", "pull-secret", "seal-key"}

// describeTokens are flags that say which tokens are accepted. None of them takes a token.
var describeTokens = []string{"azure-token-issuer", "azure-token-tenant", "azure-token-audience",
	"azure-token-application", "azure-token-host", "azure-token-binding"}

var databases = []string{"dsn", "from"}

// visitFlags calls visit with each command and each of its own flags.
func visitFlags(cmd *cobra.Command, visit func(*cobra.Command, *pflag.Flag)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { visit(cmd, f) })
	for _, c := range cmd.Commands() {
		visitFlags(c, visit)
	}
}

// Every user of a machine can read the arguments of all processes: a secret comes from a file. A
// new flag that matches secretName must name a file, too.
func TestI11NoFlagTakesASecret(t *testing.T) {
	secrets := 0
	visitFlags(newRoot(&terminal.Session{}), func(cmd *cobra.Command, f *pflag.Flag) {
		switch {
		case !secretName.MatchString(f.Name):
		case strings.HasSuffix(f.Name, "-file"), slices.Contains(databases, f.Name):
			secrets++
		case !slices.Contains(filesByAnotherName, f.Name) && !slices.Contains(describeTokens, f.Name):
			t.Errorf("%s --%s: a secret must come from a file", cmd.CommandPath(), f.Name)
		}
	})
	if secrets < 20 {
		t.Errorf("only %d flags of secrets found", secrets)
	}
}

func TestI11NoDatabaseFlagTakesAPassword(t *testing.T) {
	found := map[string]bool{}
	visitFlags(newRoot(&terminal.Session{}), func(cmd *cobra.Command, f *pflag.Flag) {
		if !slices.Contains(databases, f.Name) {
			return
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		if path[0] == "region" { // its --from names a directory
			return
		}
		found[strings.Join(path, " ")] = true
		for _, address := range []string{"postgres://u:hunter2@127.0.0.1:1/db", "host=127.0.0.1 password=hunter2"} {
			var errors strings.Builder
			args := slices.Concat(path, []string{"--" + f.Name, address})
			code := Main(args, strings.NewReader(""), io.Discard, &errors)
			if out := errors.String(); code != 1 || strings.Contains(out, "hunter2") ||
				!strings.Contains(out, "--"+f.Name+" has a password") || !strings.Contains(out, f.Name+"-file") {
				t.Errorf("%v: exit code %d, %s", args, code, out)
			}
		}
	})
	for _, cmd := range []string{"platform", "clm", "clm serve", "clm migrate", "maestro", "maestro server",
		"maestro import", "sentinel", "sentinel serve"} {
		if !found[cmd] {
			t.Errorf("atoll %s has no flag of a database", cmd)
		}
	}
}
