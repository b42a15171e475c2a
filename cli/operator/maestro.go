package operator

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/maestroclient"
)

// addMaestroFlags gives cmd the flags that select a Maestro and the identity of its caller.
func addMaestroFlags(cmd *cobra.Command) *operatorFlags {
	return addOperatorFlags(cmd, "maestro", "Maestro's REST API")
}

// callMaestro calls f with a client of Maestro.
func callMaestro(session *terminal.Session, ctx context.Context, o *operatorFlags,
	f func(context.Context, *maestroclient.Client) error) error {
	http, grpc := o.endpoint, "127.0.0.1:0" // gRPC is not used then
	if http == "" {
		home, err := session.Home()
		if err != nil {
			return err
		}
		if http, grpc, err = home.MaestroAddresses(); err != nil {
			return err
		}
	}
	cfg, err := operatorTLS(session, o)
	if err != nil {
		return err
	}
	m, err := maestroclient.New(maestroclient.Options{HTTP: http, GRPC: grpc, TLS: cfg, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer m.Close()
	return f(asOperator(ctx), m)
}

// Maestro returns the commands below "atoll maestro" that operators type.
func Maestro(session *terminal.Session) []*cobra.Command {
	return []*cobra.Command{maestroForceDelete(session), maestroUnknown(session), maestroImport(session),
		maestroRebuild(session), maestroRotateKey(session)}
}
