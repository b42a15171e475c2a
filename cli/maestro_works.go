package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	api "atoll.dev/api/maestro"
	"atoll.dev/client"
	"atoll.dev/region"
)

// operatorFlags say which Maestro an operator talks to, and as who.
type operatorFlags struct {
	http, grpc    string
	ca, cert, key string
}

func addOperator(cmd *cobra.Command) *operatorFlags {
	o := &operatorFlags{}
	cmd.Flags().StringVar(&o.http, "endpoint", "", "URL of Maestro's REST API (default: that of the region below --home)")
	cmd.Flags().StringVar(&o.ca, "ca", "", "with --endpoint: the region's CA")
	cmd.Flags().StringVar(&o.cert, "cert", "", "with --endpoint: the operator's certificate, common name "+string(access.Operator))
	cmd.Flags().StringVar(&o.key, "key", "", "with --endpoint: its key")
	return o
}

// operate calls f with a client of Maestro. In a region on this machine the
// operator is who can read the CA's key; the certificate lives as long as the
// command.
func (c *command) operate(ctx context.Context, o *operatorFlags, f func(context.Context, *client.Maestro) error) error {
	var cfg *tls.Config
	var err error
	if o.http != "" {
		cfg, err = operatorFiles(o)
	} else {
		cfg, err = c.localOperator(o)
	}
	if err != nil {
		return err
	}
	m, err := client.NewMaestro(client.MaestroOptions{HTTP: o.http, GRPC: o.grpc, TLS: cfg, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer m.Close()
	who := "cli"
	if u, err := user.Current(); err == nil {
		who = "cli:" + u.Username
	}
	return f(client.WithActor(ctx, client.Actor{Principal: who}), m)
}

func operatorFiles(o *operatorFlags) (*tls.Config, error) {
	o.grpc = "127.0.0.1:0" // not used
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("--cert and --key: %w", err)
	}
	text, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("--ca: no certificate in the file")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "maestro"}, nil
}

func (c *command) localOperator(o *operatorFlags) (*tls.Config, error) {
	home, err := region.OpenHome(c.homeDir)
	if err != nil {
		return nil, err
	}
	if o.http, o.grpc, err = home.MaestroAddresses(); err != nil {
		return nil, err
	}
	ca, err := openCA(home, "")
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	cert, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), access.Operator)
	if err != nil {
		return nil, fmt.Errorf("making an operator's certificate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: ca.Pool(), ServerName: "maestro"}, nil
}

func (c *command) maestroForceDelete() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "force-delete ID",
		Short: "End a resource bundle whose agent does not answer",
		Long: `Ends a bundle without the confirmation of its agent, for a management cluster that
does not come back. What the bundle applied there is not touched; should the agent
be heard again, it is told to delete it. The reason goes into the history.`,
		Example: `  atoll maestro force-delete ID --reason "management-07 burnt down"`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.MarkFlagRequired("reason")
	o := addOperator(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.operate(cmd.Context(), o, func(ctx context.Context, m *client.Maestro) error {
			if err := m.ForceDeleteBundle(ctx, args[0], reason); err != nil {
				return err
			}
			c.printf("%s is ended; its agent is told when it is heard again\n", args[0])
			return nil
		})
	}
	return cmd
}

func (c *command) maestroUnknown() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unknown", Args: knownVerb, RunE: showHelp, Short: "Works that agents hold and no source has",
		Long: `After Maestro's database was lost, what agents hold stays applied. Sources take their
works over when they order them again; what is left is adopted for a source, or deleted.`,
	}
	cmd.AddCommand(c.unknownList(), c.unknownAdopt(), c.unknownDelete())
	return cmd
}

func (c *command) unknownList() *cobra.Command {
	var cluster string
	cmd := &cobra.Command{Use: "list", Short: "List unknown works", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&cluster, "cluster", "", "only of this management cluster")
	out := addOutput(cmd)
	o := addOperator(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.operate(cmd.Context(), o, func(ctx context.Context, m *client.Maestro) error {
			query := client.ListOptions{Page: 1, Size: 1000, OrderBy: "consumer_name, id"}
			if cluster != "" {
				query.Search = client.Equal("consumer_name", cluster)
			}
			all := []api.UnknownWork{}
			for {
				list, err := m.UnknownWorks(ctx, query)
				if err != nil {
					return err
				}
				all = append(all, list.Items...)
				if len(list.Items) < query.Size {
					break
				}
				query.Page++
			}
			return out.print(c.out, all, func(w io.Writer) {
				rows := [][]string{{"CLUSTER", "ID", "GENERATION", "KNOWN FOR", "ADOPTING FOR"}}
				for _, u := range all {
					rows = append(rows, []string{u.ConsumerName, u.ID, strconv.FormatInt(u.Version, 10), ago(u.FirstSeenAt, time.Now()), u.AdoptingFor})
				}
				table(w, rows)
			})
		})
	}
	return cmd
}

func (c *command) unknownAdopt() *cobra.Command {
	var source, reason string
	cmd := &cobra.Command{
		Use:   "adopt CLUSTER ID",
		Short: "Make a bundle of what the cluster's agent holds",
		Long: `Asks the agent for the work and makes a bundle of it that belongs to a source. Nothing
changes on the cluster. Agents other than Atoll's cannot say what they hold.`,
		Example: "  atoll maestro unknown adopt management-01 ID --source " + client.SourceRosa,
		Args:    cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&source, "source", client.SourceRosa, "source that is to own the bundle")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	o := addOperator(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.operate(cmd.Context(), o, func(ctx context.Context, m *client.Maestro) error {
			adopted, err := m.AdoptUnknownWork(ctx, args[0], args[1], source, reason)
			switch {
			case err != nil:
				return err
			case adopted:
				c.printf("%s on %s belongs to %s\n", args[1], args[0], source)
			default:
				c.printf("%s on %s is adopted for %s when its agent has said what it holds\n", args[1], args[0], source)
			}
			return nil
		})
	}
	return cmd
}

func (c *command) unknownDelete() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "delete CLUSTER ID",
		Short: "Have the cluster's agent delete an unknown work",
		Args:  cobra.ExactArgs(2),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.MarkFlagRequired("reason")
	o := addOperator(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.operate(cmd.Context(), o, func(ctx context.Context, m *client.Maestro) error {
			if err := m.DeleteUnknownWork(ctx, args[0], args[1], reason); err != nil {
				return err
			}
			c.printf("deletion of %s on %s ordered\n", args[1], args[0])
			return nil
		})
	}
	return cmd
}
