package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/client"
	"atoll.dev/local"
)

// Version is set by the linker.
var Version = "development"

// Session is one run of the command line: its streams, and the home of a region on this machine.
type Session struct {
	In          io.Reader
	Out, Err    io.Writer
	HomeDir     string
	HomeIsGiven bool // by the flag, which is stronger than any variable
}

func (c *Session) Home() (local.Home, error) { return local.OpenHome(c.HomeDir) }

func (c *Session) Printf(format string, args ...any) { fmt.Fprintf(c.Out, format, args...) }

// RefuseUnknownVerb and ShowHelp are for commands that only group others: without a verb such a command prints its help,
// with an unknown verb it fails.
func RefuseUnknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q for %q; see `%s --help`", args[0], cmd.CommandPath(), cmd.CommandPath())
}

func ShowHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// Client returns a client of the region: of the one that ATOLL_ENDPOINT and the
// AWS_ variables name, when no --home is given and they are set, else of the
// home's.
func (c *Session) Client() (*client.Client, error) {
	if endpoint := os.Getenv("ATOLL_ENDPOINT"); endpoint != "" && !c.HomeIsGiven {
		return client.New(client.Options{
			Endpoint: endpoint, CAFile: os.Getenv("ATOLL_CA"),
			Credentials: client.Credentials{
				AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
				SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Region: os.Getenv("AWS_REGION"),
			},
		})
	}
	home, err := c.Home()
	if err != nil {
		return nil, err
	}
	return home.Client()
}

// ShellQuote leaves plain words as they are and quotes the rest.
func ShellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:+=@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
