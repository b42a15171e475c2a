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
	Capacity   map[string]int64 // of the management cluster, as hosting was told; nil when it was not
	Log        *slog.Logger
}

// reportEvery is how often hosting compares its report with the one that it wrote last.
const reportEvery = 10 * time.Second

// Run writes the report when it has changed, and every work.HostingRewriteEvery, until ctx ends. It writes an unchanged
// one, too, because the agent drops a report that is not written again, and because somebody may have changed or
// deleted it. After an error it tries again. The first error of a kind is logged: hosting may lack the right, which
// "atoll mc bootstrap" of an earlier version has not given.
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

// writeFailures remembers which failure to write the report was logged last.
type writeFailures struct {
	isLogged bool // since the last success
	reason   metav1.StatusReason
}

// mustLog reports whether the result of a write is logged: the first error since the last success, and one of another
// kind than that of the last log. The API server's reason is the kind; all errors without its answer are one kind.
func (f *writeFailures) mustLog(err error) bool {
	last := *f
	*f = writeFailures{isLogged: err != nil, reason: apierrors.ReasonForError(err)}
	return f.isLogged && *f != last
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
