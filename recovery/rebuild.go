// Package recovery restores what a region has lost. Rebuild restores Maestro's database from the lifecycle manager, the
// region's source of truth (I8).
//
// It is a service package without a process of its own: `atoll maestro rebuild` runs it. It calls CLM and Maestro by
// their clients and imports no other service.
package recovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"atoll.dev/api/clm"
	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
)

// ErrTimeout is the error of a Rebuild that was not complete at its time limit.
var ErrTimeout = errors.New("the time limit of the rebuild has passed")

// Options are the parameters of Rebuild.
type Options struct {
	CLM     *clmclient.Client
	Maestro *maestroclient.Client

	// Timeout bounds the wait that follows the first requests.
	Timeout time.Duration

	// StateFile is a file that keeps the state before the loss until a rebuild is complete, so that a later run
	// compares with it. Without one a later run compares with the state at its own beginning.
	StateFile string

	// Continued is called once if StateFile has the state of an earlier run. It may be nil.
	Continued func(begun time.Time)

	// ConsumersRestored is called once, when all consumers exist again. Compared is called after each comparison with
	// the time since the beginning of this run. Both may be nil.
	ConsumersRestored func(Report)
	Compared          func(r Report, sinceBegin time.Duration)
}

// Report is the progress of a rebuild.
type Report struct {
	Consumers struct {
		Known   int `json:"known"`   // ManagementClusters of CLM
		Created int `json:"created"` // by this run
	} `json:"consumers"`
	Resources struct {
		Known    int `json:"known"`     // resources that require adapters
		Restored int `json:"looked_at"` // resources that the rebuild does not wait for any more
	} `json:"resources"`
	Works struct {
		Present int `json:"present"` // works in Maestro's database
		Unknown int `json:"unknown"` // works that only agents hold
	} `json:"works"`
	Waiting []Wait            `json:"waiting"`
	Unknown []api.UnknownWork `json:"unknown_works"` // set when Done
	Done    bool              `json:"done"`
}

// Wait is one resource or agent that a rebuild waits for.
type Wait struct {
	Kind string `json:"kind"`
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	What string `json:"what"` // what is missing, as a sentence
}

// Rebuild restores an emptied database of Maestro. It creates a consumer for each ManagementCluster of CLM, asks all
// adapters to reconcile all resources, and waits until the adapters have reported on each resource again, each resource
// is at least as reconciled as at the beginning of this run, and each agent has listed its works.
//
//   - Complete: the report is Done and lists the works that no source has ordered again.
//   - Not complete within Timeout: ErrTimeout; the report lists what is missing.
//   - Any other error: the report has the progress of the rebuild.
//
// Rebuild changes nothing that exists. It may be stopped and called again at any time, also by two callers at once. A
// later run with the same StateFile waits also for each resource that was reconciled at the beginning of the earlier
// runs, because the adapters may have reported it as not reconciled since (docs/decisions/028).
func Rebuild(ctx context.Context, o Options) (Report, error) {
	r := &rebuild{Options: o}
	err := r.run(ctx)
	return r.report, err
}

// rebuild is one run of Rebuild.
type rebuild struct {
	Options
	report       Report
	silentAgents int // agents that have not listed their works yet
}

func (r *rebuild) run(ctx context.Context) error {
	begun := time.Now()
	clusters, err := r.createConsumers(ctx)
	if err != nil {
		return err
	}
	// A resource is reconciled again when its oldest required report is newer than in before.
	before, err := r.listResources(ctx)
	if err != nil {
		return err
	}
	st, err := r.loadState(begun)
	if err != nil {
		return err
	}
	st.merge(before)
	if err := r.saveState(st); err != nil {
		return err
	}
	if err := r.CLM.ReconcileAll(ctx, "", "Maestro's database is rebuilt"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, ErrTimeout)
	defer cancel()
	listedMore := false // another agent has listed its works since the last complete reconcileAgain
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		began, silent := time.Now(), r.silentAgents
		err := r.compare(ctx, before, clusters)
		if err == nil {
			if r.Compared != nil {
				r.Compared(r.report, time.Since(begun))
			}
			if r.report.Done = len(r.report.Waiting) == 0; r.report.Done {
				return errors.Join(r.removeState(), r.listUnknownWorks(ctx))
			}
			if r.silentAgents < silent {
				listedMore = true
			}
			if listedMore {
				if err = r.reconcileAgain(ctx); err == nil {
					listedMore = false
				}
			}
		}
		if ctx.Err() != nil {
			return r.finishLate(ctx, before, clusters)
		}
		if err != nil && remote.StatusOf(err) != http.StatusServiceUnavailable {
			return err
		}
		// The pause is at least as long as the comparison took: a large region spends at most half of its time here.
		select {
		case <-ctx.Done():
			return r.finishLate(ctx, before, clusters)
		case <-time.After(max(pause, time.Since(began))):
		}
	}
}

// finishLate compares once more if no comparison was made before the time limit, so that the report says what is
// missing. It returns the reason why ctx ended.
func (r *rebuild) finishLate(ctx context.Context, before map[string]clm.Resource, clusters []string) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, ErrTimeout) || r.report.Waiting != nil {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := r.compare(ctx, before, clusters); err != nil {
		return err
	}
	return cause
}

// reconcileAgain asks the adapters to reconcile every resource that the rebuild waits for. run calls it when another
// agent has listed its works: adapters that could not decide without that agent need not wait for their next turn.
// After an error, a part of the resources has no request; run calls reconcileAgain again when the error is temporary.
func (r *rebuild) reconcileAgain(ctx context.Context) error {
	for _, wait := range r.report.Waiting {
		if wait.ID == "" {
			continue
		}
		err := r.CLM.Reconcile(ctx, clmclient.AllKinds, wait.ID,
			"an agent listed its works after Maestro's database was lost")
		if err != nil && remote.StatusOf(err) != http.StatusNotFound {
			return err
		}
	}
	return nil
}

// createConsumers creates the missing consumers and returns the names of CLM's management clusters.
func (r *rebuild) createConsumers(ctx context.Context) ([]string, error) {
	kinds, err := r.CLM.Kinds(ctx)
	if err != nil {
		return nil, err
	}
	isManagementCluster := func(k clmclient.ResourceKind) bool { return k.Plural == clmclient.ManagementClusters }
	if !slices.ContainsFunc(kinds, isManagementCluster) {
		return nil, errors.New("the lifecycle manager has no kind ManagementCluster, so it does not know the consumers; " +
			"register them with `atoll mc register`")
	}
	have, err := r.listConsumers(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{}
	q := clmclient.ResourceQuery{Order: "name", Fields: "name,labels"}
	for mc, err := range r.CLM.All(ctx, clmclient.ManagementClusters, q) {
		if err != nil {
			return nil, err
		}
		names = append(names, mc.Name)
		r.report.Consumers.Known++
		if _, ok := have[mc.Name]; ok {
			continue
		}
		_, err := r.Maestro.CreateConsumer(ctx, work.Consumer(mc.Name), mc.Labels)
		if err != nil && remote.StatusOf(err) != http.StatusConflict { // another run was faster
			return nil, fmt.Errorf("creating the consumer %s: %w", mc.Name, err)
		}
		r.report.Consumers.Created++
	}
	if r.ConsumersRestored != nil {
		r.ConsumersRestored(r.report)
	}
	return names, nil
}

// listConsumers returns Maestro's consumers by name.
func (r *rebuild) listConsumers(ctx context.Context) (map[string]api.Consumer, error) {
	const size = 500
	have := map[string]api.Consumer{}
	for page := 1; ; page++ {
		doc, err := r.Maestro.ListConsumers(ctx, remote.ListOptions{Page: page, Size: size, OrderBy: "name"})
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
		if len(list.Items) < size {
			return have, nil
		}
	}
}

// listResources returns the resources that require adapters, by id.
func (r *rebuild) listResources(ctx context.Context) (map[string]clm.Resource, error) {
	found := map[string]clm.Resource{}
	q := clmclient.ResourceQuery{Order: "id", Fields: "kind,name,generation,status,deleted_time"}
	for res, err := range r.CLM.All(ctx, clmclient.AllKinds, q) {
		if err != nil {
			return nil, err
		}
		if clmclient.Reconciled(res.Resource) != nil {
			found[res.ID] = res.Resource
		}
	}
	return found, nil
}

// compare reads CLM and Maestro, and updates the report: the resources and agents that the rebuild still waits for.
func (r *rebuild) compare(ctx context.Context, before map[string]clm.Resource, clusters []string) error {
	now, err := r.listResources(ctx)
	if err != nil {
		return err
	}
	consumers, err := r.listConsumers(ctx)
	if err != nil {
		return err
	}
	bundles, err := r.Maestro.ListBundles(ctx, remote.ListOptions{Size: 1, Fields: "id"})
	if err != nil {
		return err
	}
	var list api.ResourceBundleList
	if err := json.Unmarshal(bundles.JSON, &list); err != nil {
		return fmt.Errorf("reading Maestro's list of works: %w", err)
	}
	waiting := unreconciled(before, now)
	r.report.Resources.Known = len(before)
	r.report.Resources.Restored = len(before) - len(waiting)
	r.report.Works.Present, r.report.Works.Unknown = int(list.Total), 0
	for _, consumer := range consumers {
		r.report.Works.Unknown += consumer.UnknownWorks
	}
	r.silentAgents = 0
	for _, name := range clusters {
		if consumers[name].ComparedAt == nil {
			r.silentAgents++
			waiting = append(waiting, Wait{Kind: "ManagementCluster", Name: name,
				What: "its agent has not listed its works yet"})
		}
	}
	r.report.Waiting = waiting
	return nil
}

// unreconciled returns the resources that adapters have not restored yet. The Reconciled condition has the time of the
// oldest required report, so a new time means that every required adapter has reported since.
func unreconciled(before, now map[string]clm.Resource) []Wait {
	waiting := []Wait{}
	for id, was := range before {
		is, exists := now[id]
		if !exists {
			continue // its deletion has ended
		}
		w := Wait{Kind: is.Kind, ID: id, Name: is.Name}
		old, cond := clmclient.Reconciled(was), clmclient.Reconciled(is)
		switch {
		case cond == nil:
			continue // no adapter is required any more
		case is.DeletedTime != nil:
			w.What = "its deletion is in progress: " + cond.Message
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
	slices.SortFunc(waiting, func(a, b Wait) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return waiting
}

// listUnknownWorks adds the works that no source has ordered again to the report.
func (r *rebuild) listUnknownWorks(ctx context.Context) (err error) {
	r.report.Unknown, err = r.Maestro.AllUnknownWorks(ctx, "")
	r.report.Works.Unknown = len(r.report.Unknown)
	return err
}
