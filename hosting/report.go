package hosting

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"atoll.dev/api/work"
)

// A Reporter writes hosting's report, a ConfigMap of the management cluster that the agent reads and sends to the
// region (decision 173).
type Reporter struct {
	Client     dynamic.Interface
	WarmPlanes func() int       // how many planes wait for new clusters, or start for that
	Capacity   map[string]int64 // that hosting was started with; nil without one
	Log        *slog.Logger
}

// reportEvery is how often hosting compares its report with the one that it wrote last.
const reportEvery = 10 * time.Second

// Run writes the report when it has changed, and every work.HostingRewriteEvery, until ctx ends. It writes an unchanged
// one, too, because the agent drops a report that hosting does not write again, and because somebody may have changed
// or deleted it. After an error Run tries again, and logs it as mustLog says. Hosting may lack the right to write:
// "atoll mc bootstrap" of earlier versions did not give it.
func (r Reporter) Run(ctx context.Context) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	var written []byte
	var at time.Time
	var failed writeFailures
	for {
		report, err := json.Marshal(work.HostingReport{WarmPlanes: r.WarmPlanes(), Capacity: r.Capacity})
		if err != nil {
			return err // impossible: it has numbers only
		}
		if string(report) != string(written) || time.Since(at) >= work.HostingRewriteEvery {
			err := r.write(ctx, report)
			if err == nil {
				written, at = report, time.Now()
			}
			if ctx.Err() == nil && failed.mustLog(err) {
				r.Log.LogAttrs(ctx, slog.LevelWarn,
					"the region does not see the warm planes: the report cannot be written; see `atoll mc bootstrap`",
					slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// writeFailures records the last failure to write the report. The zero value: the last write succeeded.
type writeFailures struct {
	hasFailed bool
	reason    metav1.StatusReason // the kind of the failure
}

// mustLog reports whether Run logs the result of a write, and records the result. Run logs the first error after a
// success, and each error of another kind than the one before. The kind is the reason in the API server's answer; all
// errors without an answer are one kind.
func (f *writeFailures) mustLog(err error) bool {
	last := *f
	*f = writeFailures{hasFailed: err != nil, reason: apierrors.ReasonForError(err)}
	return f.hasFailed && *f != last
}

// write applies the ConfigMap with a report.
func (r Reporter) write(ctx context.Context, report []byte) error {
	ctx, cancel := context.WithTimeout(ctx, reportEvery)
	defer cancel()
	data := map[string]string{work.HostingReportKey: string(report), work.HostingWriteKey: rand.Text()}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": work.HostingReportName, "namespace": work.HostingReportNamespace},
		"data":     data})
	if err != nil {
		return err
	}
	force := true
	_, err = r.Client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).
		Namespace(work.HostingReportNamespace).Patch(ctx, work.HostingReportName, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", work.HostingReportNamespace, work.HostingReportName, err)
	}
	return nil
}
