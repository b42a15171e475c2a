package services

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
)

// Probe returns the command by which a Kubernetes probe reads the health of a service in its pod.
// The service serves health on loopback, which the kubelet cannot reach.
func Probe(session *terminal.Session) *cobra.Command {
	var ops string
	cmd := &cobra.Command{
		Use: "probe [/readyz]", Hidden: true, Args: cobra.MaximumNArgs(1),
		Short:   "Read the health of a service on this machine; fails when it is unhealthy",
		Example: "  atoll probe --ops 127.0.0.1:8081 /healthz",
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/readyz"
			if len(args) > 0 {
				path = "/" + strings.TrimPrefix(args[0], "/")
			}
			req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, "http://"+ops+path, nil)
			if err != nil {
				return err
			}
			resp, err := (&http.Client{Timeout: 4 * time.Second}).Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
			if err != nil {
				return err
			}
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&ops, "ops", "", "the service's --ops address")
	cmd.MarkFlagRequired("ops")
	return cmd
}
