package services

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/maestroclient"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
)

// platformService is `atoll platform`.
type platformService struct {
	addr      string
	operators string // address of the operators' listener; empty: addr serves their routes
	database  *terminal.Database
	sealKey   string
	region    string
	clmURL    string
	placement string
	maestro   maestroclient.Options
	identity  identityFlags
	replica   replicaFlags
	limits    rest.ConnLimits
	rates     map[string]string
	exempt    []string
	running   int // most requests at the same time
	proofs    proofFlags
	azure     azureFlags
	retention time.Duration
	export    auditExport
	drain     time.Duration

	credentialLifetime time.Duration
	providers          []string // of nodes
	gateway            gatewayFlags
}

// Platform returns the command of the Platform API.
func Platform() *cobra.Command {
	f := &platformService{}
	cmd := serviceCommand("platform", "The Platform API, for customers and operators",
		`Verifies AWS Signature Version 4 and translates the Platform API to
the region's own services.`, f)
	cmd.Example = `  atoll platform --region eu-1 --listen 0.0.0.0:8443 --operator-listen 10.0.9.5:8444 \
    --dsn-file /etc/atoll/platform.dsn --seal-key /etc/atoll/seal.key --maestro-http https://maestro:8000 \
    --maestro-grpc maestro:8090 --clm https://clm:8000 --identity /var/lib/atoll/platform \
    --pki https://pki:8443 --ca /etc/atoll/ca.pem`
	addIdentityFlags(cmd, &f.identity)
	cmd.Flags().StringVar(&f.addr, "listen", "127.0.0.1:8443", "address of the API")
	cmd.Flags().StringVar(&f.operators, "operator-listen", "",
		"a second address, with all routes; --listen has no routes of operators then")
	cmd.Flags().StringVar(&f.region, "region", "", "the region's name, as signatures must name it")
	f.database = terminal.AddDatabaseFlags(cmd, "dsn", "PostgreSQL database of the Platform API alone")
	cmd.Flags().StringVar(&f.sealKey, "seal-key", "",
		"file of the keys that seal secrets at rest, the first one seals; made on first use")
	cmd.Flags().StringVar(&f.maestro.HTTP, "maestro-http", "", "URL of Maestro's REST API")
	cmd.Flags().StringVar(&f.maestro.GRPC, "maestro-grpc", "", "address of Maestro's gRPC API")
	cmd.Flags().StringVar(&f.clmURL, "clm", "",
		"URL of the lifecycle manager, which has customers' clusters and the registered management clusters")
	cmd.Flags().StringVar(&f.placement, "placement-shown-to", string(rosa.PlacementToOperators),
		"who reads which management cluster hosts a cluster: operators (privileged accounts), or customers, too")
	cmd.Flags().IntVar(&f.limits.Total, "max-connections", 8192, "open connections of the API")
	cmd.Flags().IntVar(&f.limits.PerSource, "max-connections-per-source", 0,
		"open connections from one address; raise it when clients come through one proxy (default a quarter of "+
			"--max-connections)")
	cmd.Flags().StringToStringVar(&f.rates, "rate", nil,
		"requests of an account: reads, lists, writes or credentials=PER_SECOND/AT_ONCE (default reads=2000/10000,"+
			"lists=500/5000,writes=500/5000,credentials=20/400)")
	cmd.Flags().StringSliceVar(&f.exempt, "rate-exempt", nil, "accounts without a rate")
	cmd.Flags().IntVar(&f.running, "max-requests", 1024,
		"requests that run at the same time, a quarter of them of one account; from 80 % on, reads are refused")
	f.proofs.addFlags(cmd)
	f.azure.addFlags(cmd)
	cmd.Flags().StringSliceVar(&f.providers, "node-providers", []string{string(cluster.Simulated)},
		"providers of the nodes of a node pool, of simulated, local and external; the first is the default")
	cmd.Flags().DurationVar(&f.retention, "audit-retention", audit.DefaultRetention,
		"how long audit records are kept; at least 24h")
	f.export.addFlags(cmd)
	cmd.Flags().DurationVar(&f.drain, "drain-for", 0, "how long the API serves after SIGTERM while /readyz fails: "+
		"longer than load balancers need to notice that, such as 15s, at most 10m")
	addCredentialLifetimeFlag(cmd, &f.credentialLifetime)
	f.gateway.addFlags(cmd)
	f.replica.add(cmd)
	for _, name := range []string{"region", "seal-key", "maestro-http", "maestro-grpc"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}

// maxDrain bounds --drain-for: a process that must end ends.
const maxDrain = 10 * time.Minute

// parseProviders parses the value of --node-providers.
func parseProviders(names []string) ([]cluster.NodeProvider, error) {
	var providers []cluster.NodeProvider
	for _, name := range names {
		p, err := cluster.ParseNodeProvider(name)
		if err != nil {
			return nil, fmt.Errorf("--node-providers: %w", err)
		}
		providers = append(providers, p)
	}
	return providers, nil
}

// operatorLimits returns the limits of connections of the listener of operators: those of the other
// listener, counted on their own.
func (f *platformService) operatorLimits(s *System) rest.ConnLimits {
	limits := f.limits
	limits.Metrics = prometheus.WrapRegistererWithPrefix("operator_", s.Ops.Registry)
	return limits
}

// newLimiter returns the limits of identified callers that the flags describe.
func (f *platformService) newLimiter() (*access.Limiter, error) {
	limits := access.Limits{Rates: map[access.Class]access.Rate{}, Concurrent: f.running}
	for class, text := range f.rates {
		if _, ok := access.DefaultRates[access.Class(class)]; !ok {
			return nil, fmt.Errorf("--rate %s=%s: there are reads, lists, writes and credentials", class, text)
		}
		rate, err := access.ParseRate(text)
		if err != nil {
			return nil, fmt.Errorf("--rate %s: %w", class, err)
		}
		limits.Rates[access.Class(class)] = rate
	}
	for _, account := range f.exempt {
		limits.Exempt = append(limits.Exempt, cluster.Account(account))
	}
	return access.NewLimiter(limits), nil
}
