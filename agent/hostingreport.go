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

// watchHosting reads the report of hosting until ctx ends. The heartbeats, which wait for no call of the API server,
// have the last one that was read. While the API server does not answer, that stays.
func (a *Agent) watchHosting(ctx context.Context) {
	tick := time.NewTicker(readReportEvery)
	defer tick.Stop()
	for {
		if r, err := a.kube.readHostingReport(ctx); err == nil {
			a.hosting.Store(r)
		} else if ctx.Err() == nil {
			a.log.LogAttrs(ctx, slog.LevelDebug, "the report of hosting cannot be read", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readHostingReport reads the report of hosting. It is nil when there is none, when the agent may not read it, and when
// its content is no report: then the region shows no figures.
func (k *kube) readHostingReport(ctx context.Context) (*work.HostingReport, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	o, err := k.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).
		Namespace(work.HostingReportNamespace).Get(ctx, work.HostingReportName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, _, _ := unstructured.NestedString(o.Object, "data", work.HostingReportKey)
	r, err := work.ParseHostingReport([]byte(text))
	if err != nil {
		return nil, nil
	}
	return &r, nil
}
