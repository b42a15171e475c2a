package hosting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"atoll.dev/api/work"
	"atoll.dev/test/testsite"
)

// TestTheFirstFailureToWriteTheReportIsLogged: also when the API server cannot be reached.
func TestTheFirstFailureToWriteTheReportIsLogged(t *testing.T) {
	var failed writeFailures
	unreachable := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "hosting-report", nil)
	for i, step := range []struct {
		err  error
		want bool
	}{{unreachable, true}, {unreachable, false}, {fmt.Errorf("again: %w", unreachable), false}, {nil, false},
		{unreachable, true}, {forbidden, true}, {forbidden, false}, {unreachable, true}, {nil, false}, {nil, false},
		{forbidden, true}} {
		if got := failed.mustLog(step.err); got != step.want {
			t.Fatalf("step %d, %v: it is logged: %t, want %t", i, step.err, got, step.want)
		}
	}

	unreachableClient := client(t, &rest.Config{Host: "https://127.0.0.1:1"})
	log := make(chan string, 1)
	logger := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		select {
		case log <- string(p):
		default:
		}
		return len(p), nil
	}), nil))
	r := Reporter{Client: unreachableClient, WarmPlanes: func() int { return 0 }, Log: logger}
	testsite.Run(t, "the report", r.Run)
	if line := <-log; !strings.Contains(line, "the report cannot be written") {
		t.Errorf("the log has %s", line)
	}
}

// writerFunc is an io.Writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestHostingWritesItsReport: with hosting's own rights, which let it write no other ConfigMap.
func TestHostingWritesItsReport(t *testing.T) {
	admin, own := client(t, administrator(t)), client(t, accountConfig(t))
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	planes := make(chan int, 1)
	planes <- 2
	var last int
	r := Reporter{Client: own, Capacity: map[string]int64{"planes": 40}, Log: slog.New(slog.DiscardHandler),
		WarmPlanes: func() int {
			select {
			case last = <-planes:
			default:
			}
			return last
		}}
	testsite.Run(t, "the report", func(ctx context.Context) error { return r.Run(ctx) })
	see := func(want string) {
		t.Helper()
		testsite.Eventually(t, "the report is "+want, func() error {
			o, err := admin.Resource(configMaps).Namespace(work.HostingReportNamespace).Get(t.Context(),
				work.HostingReportName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got, _, _ := unstructured.NestedString(o.Object, "data", work.HostingReportKey); got != want {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
	}
	see(`{"warm_planes":2,"capacity":{"planes":40}}`)
	planes <- 0
	see(`{"warm_planes":0,"capacity":{"planes":40}}`)

	version := func() string {
		t.Helper()
		o, err := admin.Resource(configMaps).Namespace(work.HostingReportNamespace).Get(t.Context(),
			work.HostingReportName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o.GetResourceVersion()
	}
	before := version()
	if err := r.write(t.Context(), []byte(`{"warm_planes":0,"capacity":{"planes":40}}`)); err != nil {
		t.Fatal(err)
	}
	if version() == before {
		t.Error("a second write of the same report leaves its version: the agent cannot see that hosting runs")
	}

	other := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "other"}}}
	if _, err := own.Resource(configMaps).Namespace(work.HostingReportNamespace).Create(t.Context(), other,
		metav1.CreateOptions{}); err == nil {
		t.Error("hosting may make other ConfigMaps")
	}
}
