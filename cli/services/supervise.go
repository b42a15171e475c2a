package services

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/internal/coldstart"
)

// Supervise returns the command of the supervisor, which `up` starts.
func Supervise(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "supervise", Hidden: true, Args: cobra.NoArgs,
		Short: "Keep the processes of a home running (started by up)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			coldstart.End()
			home, err := session.Home()
			if err != nil {
				return err
			}
			signal.Ignore(syscall.SIGPIPE)
			return home.Supervise(cmd.Context(), slog.New(slog.NewJSONHandler(os.Stderr, nil)))
		},
	}
}
