package agent

import (
	"context"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/work"
)

// readReportEvery is how often the agent reads the report of hosting.
const readReportEvery = 30 * time.Second

// hostingRecord is the last report of hosting that the agent has read. Its times are of the agent's own clock, and are
// never compared with times of hosting's machine.
type hostingRecord struct {
	report  *work.HostingReport // nil: none
	version string              // resource version of the report; "": the agent has read none yet, or there is none
	since   time.Time           // when the agent first read this version
}

// record records a report that the agent has read at now. An unchanged version keeps its time.
func (h *hostingRecord) record(report *work.HostingReport, version string, now time.Time) {
	if version == "" || version != h.version {
		*h = hostingRecord{report, version, now}
	}
}

// reportAt returns the report that the heartbeats have at now: nil when its version has not changed for
// work.MaxHostingReportAge. Then hosting does not run, or the report cannot be read.
func (h *hostingRecord) reportAt(now time.Time) *work.HostingReport {
	if now.Sub(h.since) >= work.MaxHostingReportAge {
		return nil
	}
	return h.report
}

// watchHosting reads the report of hosting every readReportEvery until ctx ends, and stores it in a.hosting for the
// heartbeats: these must not wait for the API server. While the API server does not answer, the last report stays
// there until it is too old.
func (a *Agent) watchHosting(ctx context.Context) {
	tick := time.NewTicker(readReportEvery)
	defer tick.Stop()
	var last hostingRecord
	for {
		r, version, err := a.kube.readHostingReport(ctx)
		now := time.Now()
		if err == nil {
			last.record(r, version, now)
		} else if ctx.Err() == nil {
			a.log.LogAttrs(ctx, slog.LevelDebug, "the report of hosting cannot be read", slog.Any("error", err))
		}
		a.hosting.Store(last.reportAt(now))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readHostingReport reads the report of hosting and its resource version. The report is nil when there is none, when
// the agent may not read it, and when its content is no report: then the region shows no figures.
func (k *kube) readHostingReport(ctx context.Context) (r *work.HostingReport, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := k.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).
		Namespace(work.HostingReportNamespace).Get(ctx, work.HostingReportName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	text, _, _ := unstructured.NestedString(o.Object, "data", work.HostingReportKey)
	parsed, err := work.ParseHostingReport([]byte(text))
	if err != nil {
		return nil, o.GetResourceVersion(), nil
	}
	return &parsed, o.GetResourceVersion(), nil
}
