package terminal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	HomeIsGiven bool // by the flag, which overrides all variables
}

// Home returns the home of the region on this machine.
func (session *Session) Home() (local.Home, error) { return local.OpenHome(session.HomeDir) }

// Printf prints to standard output.
func (session *Session) Printf(format string, args ...any) { fmt.Fprintf(session.Out, format, args...) }

// RefuseUnknownVerb is the argument check of a command that only groups others: an argument is an
// unknown verb, which is an error.
func RefuseUnknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q for %q; see `%s --help`", args[0], cmd.CommandPath(), cmd.CommandPath())
}

// ShowHelp is the action of a command that only groups others.
func ShowHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// Client returns a client of a region, by the first of these that is there: the home that the flag --home names; the
// variables ATOLL_ENDPOINT and AWS_; the login of `atoll login`, unless ATOLL_HOME is set; the home.
func (session *Session) Client() (*client.Client, error) {
	endpoint := os.Getenv("ATOLL_ENDPOINT")
	if !session.HomeIsGiven && (endpoint == "" && os.Getenv("ATOLL_HOME") == "" ||
		endpoint != "" && os.Getenv("AWS_ACCESS_KEY_ID") == "") {
		login, err := ReadLogin()
		switch {
		case err == nil && (endpoint == "" || endpoint == login.Endpoint):
			return login.Client()
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	if endpoint != "" && !session.HomeIsGiven {
		return client.New(client.Options{
			Endpoint: endpoint, CAFile: os.Getenv("ATOLL_CA"),
			Credentials: client.Credentials{
				AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
				SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Region: os.Getenv("AWS_REGION"),
			},
		})
	}
	home, err := session.Home()
	if err != nil {
		return nil, err
	}
	return home.Client()
}

// ShellQuote quotes a text for a shell. It leaves plain words as they are.
func ShellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:+=@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
