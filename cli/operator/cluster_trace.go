package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/maestro"
	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// Cluster returns the commands below "atoll cluster" that operators use.
func Cluster(session *terminal.Session) []*cobra.Command {
	return []*cobra.Command{clusterTrace(session), clusterMove(session)}
}

// traceHistory is how many records of a cluster's history a trace reads, the latest.
const traceHistory = 300

func clusterTrace(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace NAME | ID | RESOURCE-ID",
		Short: "Show which part of the region a cluster waits for, and all its events",
		Long: `Follows one cluster through the region: the front that accepted it, the lifecycle manager,
the sentinel, the adapters, Maestro's works, the agent of the management cluster, the
HostedCluster and its control plane. The first table has the state of each of these, and
marks the first one that the cluster waits for. The second one has all events in one order.
It works for the clusters of every account and front; a cluster of Azure can be named by
its name there, or by its resource id.

Times of the agent, the HostedCluster and the plane are of the management cluster's clock.`,
		Example: `  atoll cluster trace demo
  atoll cluster trace 0199b3a0-5f1c-7a00-8000-0123456789ab -o json
  atoll cluster trace /subscriptions/S/resourceGroups/G/providers/Microsoft.RedHatOpenShift/hcpOpenShiftClusters/demo`,
		Args: cobra.ExactArgs(1),
	}
	call, maestroURL := addCLMFlags(cmd), ""
	cmd.Flags().StringVar(&maestroURL, "maestro-endpoint", "", "URL of Maestro's REST API; needed with --endpoint")
	cmd.MarkFlagsRequiredTogether("endpoint", "maestro-endpoint")
	out := terminal.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return callCLM(session, cmd.Context(), call, func(ctx context.Context, l *clmConnection) error {
			r, err := l.findTraced(ctx, args[0])
			if err != nil {
				return err
			}
			facts, err := l.collectTrace(ctx, r)
			if err != nil {
				return err
			}
			toMaestro := *call.operatorFlags
			toMaestro.service, toMaestro.endpoint = "maestro", maestroURL
			facts.readWorks(session, ctx, &toMaestro)
			t := traceCluster(facts)
			return out.Print(session.Out, t, func(w io.Writer) { traceTables(w, t, facts.Now) })
		})
	}
	return cmd
}

// collectTrace reads the lifecycle manager's documents about a cluster.
func (l *clmConnection) collectTrace(ctx context.Context, r clmclient.Resource) (f traceFacts, err error) {
	f = traceFacts{resourceFacts: resourceFacts{Resource: r.Resource, Now: time.Now()}}
	if f.Reports, err = l.Statuses(ctx, "clusters", r.ID); err != nil {
		return f, err
	}
	p, err := l.Placement(ctx, cluster.ID(r.ID))
	switch status := remote.StatusOf(err); {
	case err == nil:
		f.Placement = &p
	case status < 400 || status >= 500: // other 4xx: no placement, or no fleet
		return f, err
	}
	f.History, err = l.History(ctx, "clusters", r.ID, 0, traceHistory)
	if remote.StatusOf(err) == http.StatusNotFound {
		err = nil
	}
	return f, err
}

// readWorks reads the works of the cluster from Maestro. A trace without them is useful too, so that an error is a
// part of the facts.
func (f *traceFacts) readWorks(session *terminal.Session, ctx context.Context, o *operatorFlags) {
	f.WorksError = callMaestro(session, ctx, o, func(ctx context.Context, m *maestroclient.Client) error {
		doc, err := m.ListBundles(ctx, remote.ListOptions{Size: 100, OrderBy: "created_at",
			Search: "payload->'metadata'->'labels'->>'hyperfleet.io/cluster-id'='" + f.Resource.ID + "'"})
		if err != nil {
			return err
		}
		var list maestro.ResourceBundleList
		if err := json.Unmarshal(doc.JSON, &list); err != nil {
			return fmt.Errorf("reading the works: %w", err)
		}
		for _, item := range list.Items {
			doc, err := m.Bundle(ctx, work.ID(item.ID)) // only this answer has the delivery
			if remote.StatusOf(err) == http.StatusNotFound {
				continue
			}
			if err != nil {
				return err
			}
			w, err := workOf(doc.JSON)
			if err != nil {
				return err
			}
			f.Works = append(f.Works, w)
		}
		return nil
	})
}

// workOf reads a resource bundle of Maestro as a work.
func workOf(bundle []byte) (w platform.Work, err error) {
	var b struct {
		Name         string             `json:"name"`
		ConsumerName string             `json:"consumer_name"`
		Version      int64              `json:"version"`
		UpdatedAt    time.Time          `json:"updated_at"`
		DeletedAt    *time.Time         `json:"deleted_at"`
		Delivery     *platform.Delivery `json:"delivery"`
		Metadata     struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Status struct {
			Manifests []workv1.ManifestCondition `json:"resourceStatus"`
		} `json:"status"`
	}
	if err := json.Unmarshal(bundle, &b); err != nil {
		return w, fmt.Errorf("reading a work: %w", err)
	}
	w = platform.Work{Name: cmp.Or(b.Metadata.Name, b.Name), ClusterID: b.ConsumerName, Generation: b.Version,
		UpdatedAt: b.UpdatedAt, DeletedAt: b.DeletedAt, Delivery: b.Delivery}
	w.Status.ResourceStatus.Manifests = b.Status.Manifests
	return w, nil
}
