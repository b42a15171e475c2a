package customer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pause"
)

// planeAuditPath is where a control plane answers with its audit log.
const planeAuditPath = "/atoll.dev/audit"

// auditCredentialLifetime is the life of the credential of a command that reads an audit log.
const auditCredentialLifetime = 10 * time.Minute

func clusterAudit(session *terminal.Session) *cobra.Command {
	var filter planeAuditFilter
	var follow bool
	var since time.Duration
	var kubeconfig string
	cmd := &cobra.Command{
		Use:   "audit NAME",
		Short: "Read the audit log of a cluster's own Kubernetes API",
		Long: `Shows who changed what in the cluster, and who read Secrets, the oldest event first. The control plane keeps
this log, of 60 MiB and 30 days at most; what was done to the cluster through the region is in
"atoll audit list --resource ID".

The control plane gives the log to holders of the role admin. The command makes a credential of that role,
which needs the right to CreateCredential, and revokes it at its end; --kubeconfig uses an existing one. A
hibernating cluster wakes. The events are those of audit.k8s.io/v1 with -o json.`,
		Example: `  atoll cluster audit demo --since 1h
  atoll cluster audit demo --user atoll:credential:0190c5e2-... --verb delete
  atoll cluster audit demo --follow -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completion(session, completeClusters),
	}
	flags := cmd.Flags()
	flags.DurationVar(&since, "since", 0, "only events of the last such time, such as 1h")
	flags.StringVar(&filter.user, "user", "", "only events of this user")
	flags.StringSliceVar(&filter.verbs, "verb", nil, "only events with these verbs, such as create,delete")
	flags.StringVar(&filter.resource, "resource", "", "only events about these resources, such as secrets")
	flags.BoolVarP(&follow, "follow", "f", false, "show further events until Ctrl-C")
	flags.StringVar(&kubeconfig, "kubeconfig", "",
		"kubeconfig of an administrator of the cluster, in place of a new credential")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since > 0 {
			filter.since = time.Now().Add(-since)
		}
		position := &planeAuditPosition{filter: filter}
		read := func(ctx context.Context, open openPlane) error {
			if follow {
				return followPlaneAudit(ctx, open, position, printPlaneAuditLines(session.Out, out), func(err error) {
					fmt.Fprintf(session.Err, "%v; trying again\n", err)
				})
			}
			plane, err := open(ctx)
			if err != nil {
				return err
			}
			events, err := plane.readAudit(ctx, position)
			if err != nil {
				return err
			}
			return printPlaneAudit(session.Out, out, events)
		}
		if kubeconfig != "" {
			return read(cmd.Context(), func(context.Context) (*planeClient, error) {
				config, err := clientcmd.LoadFromFile(kubeconfig)
				if err != nil {
					return nil, fmt.Errorf("--kubeconfig: %w", err)
				}
				return newPlaneClient(config, time.Time{})
			})
		}
		return callCluster(session, cmd.Context(), args[0], func(ctx context.Context, api *client.Client,
			cluster client.Cluster) error {
			credentials := &auditCredentials{api: api, cluster: cluster}
			err := read(ctx, credentials.open)
			return errors.Join(err, credentials.revoke(context.WithoutCancel(ctx)))
		})
	}
	return cmd
}

// planeClient is a client of one control plane, whose credential ends at the time, unless that is zero.
type planeClient struct {
	http *http.Client
	url  string
	ends time.Time
}

// openPlane returns a client with a valid credential.
type openPlane func(context.Context) (*planeClient, error)

func newPlaneClient(config *clientcmdapi.Config, ends time.Time) (*planeClient, error) {
	settings, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	settings.Timeout = 2 * time.Minute
	h, err := rest.HTTPClientFor(settings)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return &planeClient{http: h, url: settings.Host + planeAuditPath, ends: ends}, nil
}

// auditCredentials makes credentials for one command, and revokes them.
type auditCredentials struct {
	api     *client.Client
	cluster client.Cluster
	made    []client.CredentialID
}

func (a *auditCredentials) open(ctx context.Context) (*planeClient, error) {
	config, credential, err := makeKubeconfig(ctx, a.api, client.ClusterID(a.cluster.ID), a.cluster.Name,
		platform.CredentialRequest{ExpirationSeconds: int(auditCredentialLifetime.Seconds()), Role: "admin"})
	if err != nil {
		return nil, err
	}
	a.made = append(a.made, client.CredentialID(credential.ID))
	return newPlaneClient(config, credential.ExpiresAt)
}

// revoke revokes the last credential; those before have expired, or are about to.
func (a *auditCredentials) revoke(ctx context.Context) error {
	if len(a.made) == 0 {
		return nil
	}
	ctx, end := context.WithTimeout(ctx, 10*time.Second)
	defer end()
	last := a.made[len(a.made)-1]
	if err := a.api.RevokeCredential(ctx, client.ClusterID(a.cluster.ID), last); err != nil {
		return fmt.Errorf("revoking the credential %s of this command, which ends by itself: %w", last, err)
	}
	return nil
}

// followPlaneAudit prints what the position has not passed until ctx ends. The control plane answers with its whole
// log, so the reader waits twenty times as long as the last read took, and 2 s at least. It goes on when the network,
// the region or the control plane fails for a time; warn prints that once. A refusal, a certificate that is not
// trusted, or an error of print, ends it.
func followPlaneAudit(ctx context.Context, open openPlane, position *planeAuditPosition,
	print func([]planeAuditEvent) error, warn func(error)) error {
	var plane *planeClient
	for failures := 0; ; {
		begun := time.Now()
		var err error
		if plane == nil || !plane.ends.IsZero() && time.Until(plane.ends) < auditCredentialLifetime/2 {
			var next *planeClient
			if next, err = open(ctx); err == nil {
				plane = next
			}
		}
		var events []planeAuditEvent
		if err == nil {
			events, err = plane.readAudit(ctx, position)
		}
		wait := max(2*time.Second, 20*time.Since(begun))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			failures = 0
			if err := print(events); err != nil {
				return err
			}
		case !isPassing(err):
			return err
		default:
			if failures++; failures == 1 {
				warn(err)
			}
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// planeRefusal is an answer of a control plane that is not its log.
type planeRefusal struct {
	status int
	text   string
}

func (e *planeRefusal) Error() string {
	return fmt.Sprintf("reading the audit log of the cluster: %d %s: %s", e.status, http.StatusText(e.status), e.text)
}

// isPassing reports whether an error may be gone at the next attempt: the network's, or an answer of 5xx or 429. A
// server whose certificate is not trusted stays so.
func isPassing(err error) bool {
	if isUntrusted(err) {
		return false
	}
	status := remote.StatusOf(err)
	if refusal, ok := errors.AsType[*planeRefusal](err); ok {
		status = refusal.status
	}
	if status != 0 {
		return status >= 500 || status == http.StatusTooManyRequests
	}
	_, isOfNetwork := errors.AsType[net.Error](err)
	return isOfNetwork || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// isUntrusted reports whether a connection failed because the server's certificate is not trusted.
func isUntrusted(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return untrusted
}

// readAudit returns the events that the position has not passed, and moves the position behind them.
func (p *planeClient) readAudit(ctx context.Context, position *planeAuditPosition) ([]planeAuditEvent, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return nil, err
	}
	res, err := p.http.Do(req)
	if isUntrusted(err) {
		return nil, fmt.Errorf("the kubeconfig does not trust the server at %s, which may not be the cluster's: %w; see: "+
			"atoll cluster kubeconfig", p.url, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the audit log of the cluster: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return nil, &planeRefusal{res.StatusCode, terminal.OneLine(string(text))}
	}
	return position.advance(res.Body)
}

// MarshalJSON leaves an event as the control plane wrote it.
func (e planeAuditEvent) MarshalJSON() ([]byte, error) { return e.raw, nil }

func printPlaneAudit(w io.Writer, out *terminal.Output, events []planeAuditEvent) error {
	list := struct {
		Items []planeAuditEvent `json:"items"`
	}{append([]planeAuditEvent{}, events...)}
	return out.Print(w, list, func(w io.Writer) {
		rows := [][]string{{"TIME", "CODE", "VERB", "RESOURCE", "USER"}}
		for _, e := range events {
			rows = append(rows, e.row(time.DateTime))
		}
		terminal.Table(w, rows)
	})
}

// planeAuditLine is the format of a row of a table that grows.
const planeAuditLine = "%-19s  %4s  %-8s  %-50s  %s\n"

// printPlaneAuditLines returns a function that prints further events, below one heading.
func printPlaneAuditLines(w io.Writer, out *terminal.Output) func([]planeAuditEvent) error {
	if out.Format == "table" {
		fmt.Fprintf(w, planeAuditLine, "TIME", "CODE", "VERB", "RESOURCE", "USER")
	}
	return func(events []planeAuditEvent) error {
		for _, e := range events {
			if printed, err := out.PrintEvent(w, json.RawMessage(e.raw)); err != nil {
				return err
			} else if printed {
				continue
			}
			r := e.row(time.DateTime)
			for i := range r {
				r[i] = terminal.OneLine(r[i])
			}
			if _, err := fmt.Fprintf(w, planeAuditLine, r[0], r[1], r[2], r[3], r[4]); err != nil {
				return err
			}
		}
		return nil
	}
}

func (e planeAuditEvent) row(layout string) []string {
	user := e.User.Username
	if e.Impersonated != nil {
		user += " as " + e.Impersonated.Username
	}
	return []string{e.Time.Local().Format(layout), strconv.Itoa(e.Response.Code), e.Verb, e.object(), user}
}
