package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/api/clm"
	api "atoll.dev/api/maestro"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
)

func (c *command) maestroRebuild() *cobra.Command {
	timeout := 10 * time.Minute
	var lifecycleURL string
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Restore Maestro's database, which was lost, from the lifecycle manager",
		Long: `Restores what an emptied database of Maestro lost: the consumers, from the lifecycle
manager's ManagementClusters, and the works, by having all adapters look at all of their
resources again. They order the same works under the same ids, agents hold them already,
and nothing on a management cluster is deleted or made anew. Deletions that were under way
go on.

It waits until every resource has been looked at and is as reconciled as it was, shows
what it waits for, and lists works that agents hold and no source has ordered again. It
changes nothing that is there and may be stopped and run again at any time.`,
		Example: `  atoll maestro rebuild
  atoll maestro rebuild --timeout 1h -o json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait")
	cmd.Flags().StringVar(&lifecycleURL, "clm-endpoint", "", "with --endpoint: URL of CLM's REST API")
	o := addOperator(cmd)
	cmd.MarkFlagsRequiredTogether("endpoint", "clm-endpoint")
	out := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		toCLM := *o
		toCLM.service, toCLM.endpoint = "clm", lifecycleURL
		return c.operate(cmd.Context(), o, func(ctx context.Context, m *maestroclient.Client) error {
			return c.callCLM(ctx, &clmCaller{operatorFlags: &toCLM}, func(ctx context.Context, l *lifecycle) error {
				r := &rebuild{maestro: m, clm: l, progress: cmd.ErrOrStderr(), timeout: timeout}
				err := r.run(ctx)
				if err != nil && !errors.Is(err, errRebuildLate) {
					return err
				}
				if err := out.print(c.out, r.report, func(w io.Writer) {
					rebuildTable(w, r.report, time.Now())
				}); err != nil {
					return err
				}
				if err != nil {
					return fmt.Errorf(
						"not complete after %s: %d resources and agents are waited for; run it again to go on", timeout,
						len(r.report.Waiting))
				}
				return nil
			})
		})
	}
	return cmd
}

var errRebuildLate = errors.New("the time is over")

// rebuildReport is how far a rebuild has come, and what it came to.
type rebuildReport struct {
	Consumers struct {
		Known   int `json:"known"`   // ManagementClusters of CLM
		Created int `json:"created"` // by this run
	} `json:"consumers"`
	Resources struct {
		Known  int `json:"known"` // that adapters work for
		Looked int `json:"looked_at"`
	} `json:"resources"`
	Works struct {
		Present int `json:"present"` // that Maestro has
		Unknown int `json:"unknown"` // that agents hold besides
	} `json:"works"`
	Waiting []rebuildWait     `json:"waiting"`
	Unknown []api.UnknownWork `json:"unknown_works"` // once nothing is waited for
	Done    bool              `json:"done"`
}

// rebuildWait is a resource, or an agent, that a rebuild waits for.
type rebuildWait struct {
	Kind string `json:"kind"`
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	What string `json:"what"`
}

// rebuild is one run of the command.
type rebuild struct {
	maestro  *maestroclient.Client
	clm      *lifecycle
	progress io.Writer
	timeout  time.Duration // of the waiting
	report   rebuildReport
	shown    string
	unheard  int // agents that are waited for
}

const managementClusters clmclient.Collection = "managementclusters"

// run restores, and waits until all is restored. Its error is errRebuildLate
// when it waited for longer than its time limit.
func (r *rebuild) run(ctx context.Context) error {
	begun := time.Now()
	clusters, err := r.consumers(ctx)
	if err != nil {
		return err
	}
	// What adapters said before they were asked shows later who has looked.
	before, err := r.resources(ctx)
	if err != nil {
		return err
	}
	if err := r.clm.ReconcileAll(ctx, "", "Maestro's database is rebuilt"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, errRebuildLate)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		began, unheard := time.Now(), r.unheard
		err := r.look(ctx, before, clusters)
		if err == nil {
			r.show(time.Since(begun))
			if r.report.Done = len(r.report.Waiting) == 0; r.report.Done {
				return r.unknown(ctx)
			}
			if r.unheard < unheard {
				err = r.askAgain(ctx)
			}
		}
		if ctx.Err() != nil {
			return r.late(ctx, before, clusters)
		}
		if err != nil && remote.StatusOf(err) != 503 {
			return err
		}
		// A large region is not asked more than half of the time.
		select {
		case <-ctx.Done():
			return r.late(ctx, before, clusters)
		case <-time.After(max(pause, time.Since(began))):
		}
	}
}

// late is the end of a run whose time is over. What it waited for is said, also
// when there was no time to look.
func (r *rebuild) late(ctx context.Context, before map[string]clm.Resource, clusters []string) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, errRebuildLate) || r.report.Waiting != nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := r.look(ctx, before, clusters); err != nil {
		return err
	}
	return cause
}

// askAgain asks for work on what is waited for, now that more agents have said
// what they hold: what was in doubt without them need not wait for its turn.
func (r *rebuild) askAgain(ctx context.Context) error {
	for _, wait := range r.report.Waiting {
		if wait.ID == "" {
			continue
		}
		err := r.clm.Reconcile(ctx, clmclient.AllKinds, wait.ID, "an agent was heard after Maestro's database was lost")
		if err != nil && remote.StatusOf(err) != 404 {
			return err
		}
	}
	return nil
}

// consumers makes those that are missing and returns the names of all that CLM
// knows.
func (r *rebuild) consumers(ctx context.Context) ([]string, error) {
	if r.clm.kind(managementClusters) == "" {
		return nil,
			errors.New(
				"the lifecycle manager has no kind ManagementCluster, so nobody knows the consumers; register them " +
					"with `atoll mc register`")
	}
	have, err := r.maestroConsumers(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for mc, err := range r.clm.All(ctx, managementClusters, clmclient.ResourceQuery{Order: "name",
		Fields: "name,labels"}) {
		if err != nil {
			return nil, err
		}
		names = append(names, mc.Name)
		r.report.Consumers.Known++
		if _, ok := have[mc.Name]; ok {
			continue
		}
		_, err := r.maestro.CreateConsumer(ctx, mc.Name, mc.Labels)
		if err != nil && remote.StatusOf(err) != 409 { // another run was faster
			return nil, fmt.Errorf("making the consumer %s: %w", mc.Name, err)
		}
		r.report.Consumers.Created++
	}
	fmt.Fprintf(r.progress, "%d consumers, %d of them made now\n", r.report.Consumers.Known, r.report.Consumers.Created)
	return names, nil
}

// maestroConsumers are Maestro's consumers by name.
func (r *rebuild) maestroConsumers(ctx context.Context) (map[string]api.Consumer, error) {
	have := map[string]api.Consumer{}
	for page := 1; ; page++ {
		doc, err := r.maestro.ListConsumers(ctx, remote.ListOptions{Page: page, Size: 500, OrderBy: "name"})
		if err != nil {
			return nil, err
		}
		var list api.ConsumerList
		if err := json.Unmarshal(doc.JSON, &list); err != nil {
			return nil, fmt.Errorf("reading Maestro's list of consumers: %w", err)
		}
		for _, consumer := range list.Items {
			have[consumer.Name] = consumer
		}
		if len(list.Items) < 500 {
			return have, nil
		}
	}
}

// resources are those that adapters work for, by id.
func (r *rebuild) resources(ctx context.Context) (map[string]clm.Resource, error) {
	found := map[string]clm.Resource{}
	for res, err := range r.clm.All(ctx, clmclient.AllKinds, clmclient.ResourceQuery{Order: "id",
		Fields: "kind,name,generation,status,deleted_time"}) {
		if err != nil {
			return nil, err
		}
		if reconciledOf(res.Resource) != nil {
			found[res.ID] = res.Resource
		}
	}
	return found, nil
}

// look finds out how far it is.
func (r *rebuild) look(ctx context.Context, before map[string]clm.Resource, clusters []string) error {
	now, err := r.resources(ctx)
	if err != nil {
		return err
	}
	consumers, err := r.maestroConsumers(ctx)
	if err != nil {
		return err
	}
	bundles, err := r.maestro.ListBundles(ctx, remote.ListOptions{Size: 1, Fields: "id"})
	if err != nil {
		return err
	}
	var list api.ResourceBundleList
	if err := json.Unmarshal(bundles.JSON, &list); err != nil {
		return fmt.Errorf("reading Maestro's list of works: %w", err)
	}
	waiting := awaitedResources(before, now)
	r.report.Resources.Known = len(before)
	r.report.Resources.Looked = len(before) - len(waiting)
	r.report.Works.Present, r.report.Works.Unknown = int(list.Total), 0
	for _, consumer := range consumers {
		r.report.Works.Unknown += consumer.UnknownWorks
	}
	r.unheard = 0
	for _, name := range clusters {
		if consumers[name].ComparedAt == nil {
			r.unheard++
			waiting = append(waiting, rebuildWait{Kind: "ManagementCluster", Name: name,
				What: "its agent has not said yet what it holds"})
		}
	}
	r.report.Waiting = waiting
	return nil
}

// awaitedResources are the resources that are not as they were yet. An adapter
// that has looked at one has reported, so the time of its Reconciled condition
// has moved: it is that of the oldest report of those that are required.
func awaitedResources(before, now map[string]clm.Resource) []rebuildWait {
	waiting := []rebuildWait{}
	for id, was := range before {
		is, there := now[id]
		if !there {
			continue // its deletion has ended
		}
		w := rebuildWait{Kind: is.Kind, ID: id, Name: is.Name}
		old, cond := reconciledOf(was), reconciledOf(is)
		switch {
		case cond == nil:
			continue // nobody works for it any more
		case is.DeletedTime != nil:
			w.What = "its deletion is under way: " + cond.Message
		case cond.LastUpdatedTime.Equal(old.LastUpdatedTime) && is.Generation == was.Generation:
			w.What = "not all of its adapters have reported since"
			if cond.Status != "True" {
				w.What += "; " + cond.Message
			}
		case old.Status == "True" && cond.Status != "True":
			w.What = "it was reconciled before: " + cond.Message
		default:
			continue
		}
		waiting = append(waiting, w)
	}
	slices.SortFunc(waiting, func(a, b rebuildWait) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return waiting
}

// unknown lists the works that nobody has ordered again.
func (r *rebuild) unknown(ctx context.Context) (err error) {
	r.report.Unknown, err = unknownWorks(ctx, r.maestro, "")
	r.report.Works.Unknown = len(r.report.Unknown)
	return err
}

// show writes how far it is, when that has changed.
func (r *rebuild) show(since time.Duration) {
	line := fmt.Sprintf("resources: %d of %d looked at; works: %d of %d restored", r.report.Resources.Looked,
		r.report.Resources.Known,
		r.report.Works.Present, r.report.Works.Present+r.report.Works.Unknown)
	if n := len(r.report.Waiting); n > 0 {
		w := r.report.Waiting[0]
		line += fmt.Sprintf("; waiting for %d, such as %s %s: %s", n, w.Kind, w.Name, oneLine(w.What))
	}
	if line != r.shown {
		r.shown = line
		fmt.Fprintf(r.progress, "  %8s  %s\n", took(since), line)
	}
}

// rebuildTable shows what it came to.
func rebuildTable(w io.Writer, r rebuildReport, now time.Time) {
	if len(r.Waiting) > 0 {
		rows := [][]string{{"WAITING FOR", "NAME", "ID", "WHY"}}
		for _, wait := range r.Waiting {
			rows = append(rows, []string{wait.Kind, wait.Name, cmp.Or(wait.ID, "-"), wait.What})
		}
		table(w, rows)
		fmt.Fprintln(w, "what one waits for: atoll clm why ID; agents: atoll mc list")
	}
	if !r.Done {
		return
	}
	fmt.Fprintf(w, "restored: %d consumers, %d works; %d resources were looked at\n", r.Consumers.Known,
		r.Works.Present, r.Resources.Looked)
	if len(r.Unknown) == 0 {
		return
	}
	fmt.Fprintf(w, "\nAgents hold %d works that no source has ordered again; they stay applied:\n", len(r.Unknown))
	unknownTable(w, r.Unknown, now)
	u := r.Unknown[0]
	fmt.Fprintf(w, `If a source still wants one:   atoll maestro unknown adopt %[1]s %[2]s --source SOURCE
If nobody does:                atoll maestro unknown delete %[1]s %[2]s --reason WHY
`, u.ConsumerName, u.ID)
}
