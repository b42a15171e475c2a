package interop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/openshift/library-go/pkg/controller/controllercmd"
	"github.com/openshift/library-go/pkg/operator/events"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	workclientset "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1client "open-cluster-management.io/api/client/work/clientset/versioned/typed/work/v1"
	workinformers "open-cluster-management.io/api/client/work/informers/externalversions"
	workv1informers "open-cluster-management.io/api/client/work/informers/externalversions/work/v1"
	ocmfeature "open-cluster-management.io/api/feature"
	workv1 "open-cluster-management.io/api/work/v1"

	commonoptions "open-cluster-management.io/ocm/pkg/common/options"
	"open-cluster-management.io/ocm/pkg/features"
	"open-cluster-management.io/ocm/pkg/work/spoke"

	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/options"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work"
	agentcodec "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/agent/codec"
	sourcecodec "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/source/codec"
	workstore "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/store"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/builder"
)

// The foreign programs log by klog: to the file of ATOLL_KLOG, else nowhere. Their errors are
// mostly conflicts that they retry.
func init() {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	flags.Set("logtostderr", "false")
	flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
	if file := os.Getenv("ATOLL_KLOG"); file != "" {
		f, err := os.Create(file)
		if err != nil {
			panic(err)
		}
		klog.SetOutput(f)
	}
}

// way is how a foreign program reaches the region: a driver of OCM's SDK.
type way string

const (
	byMQTT way = "mqtt"
	byGRPC way = "grpc"
)

// config writes the configuration file of a driver, as a person would.
func (s *server) config(t *testing.T, w way, addr string, id identity) string {
	t.Helper()
	text := fmt.Sprintf("caFile: %s\nclientCertFile: %s\nclientKeyFile: %s\n", s.world.ca, id.cert, id.key)
	switch w {
	case byMQTT:
		text += fmt.Sprintf(`brokerHost: %s
topics:
  sourceEvents: sources/maestro/consumers/+/sourceevents
  agentEvents: sources/maestro/consumers/+/agentevents
`, addr)
	case byGRPC:
		text += fmt.Sprintf(`url: %s
keepAliveConfig:
  enable: true
  permitWithoutStream: true
serverHealthinessTimeout: 20s
`, addr)
	}
	file := filepath.Join(t.TempDir(), string(w)+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func load(t *testing.T, w way, file string) any {
	t.Helper()
	_, config, err := builder.NewConfigLoader(string(w), file).LoadConfig()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// source is OCM's source client with its informer.
type source struct {
	t        *testing.T
	id       string
	works    workclientset.Interface
	informer workv1informers.ManifestWorkInformer
	server   *server
	stop     func()
}

// startSource starts OCM's source client, over gRPC against a server of ours, or over MQTT against an agent.
func (s *server) startSource(t *testing.T, sourceID string, w way, addr string, id identity) *source {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	store := workstore.NewSourceInformerWatcherStore(ctx)
	holder, err := work.NewSourceClientHolder(ctx, options.NewGenericClientOptions(
		load(t, w, s.config(t, w, addr, id)), sourcecodec.NewManifestBundleCodec(), "maestro-"+sourceID).
		WithSourceID(sourceID).WithClientWatcherStore(store))
	if err != nil {
		t.Fatal(err)
	}
	informer := workinformers.NewSharedInformerFactory(holder.WorkInterface(), time.Hour).Work().V1().ManifestWorks()
	store.SetInformer(informer.Informer())
	go informer.Informer().Run(ctx.Done())
	src := &source{t: t, id: sourceID, works: holder.WorkInterface(), informer: informer, server: s, stop: cancel}
	eventually(t, "the source's informer has synced", func() error {
		if !informer.Informer().HasSynced() {
			return errors.New("not yet")
		}
		return nil
	})
	return src
}

// at is the client of one cluster's works. It has its namespace in a field, so no two goroutines may share it.
func (s *source) at(cluster string) workv1client.ManifestWorkInterface {
	return s.works.WorkV1().ManifestWorks(cluster)
}

// work returns a work as the source's informer has it, or nil.
func (s *source) work(cluster, name string) *workv1.ManifestWork {
	w, err := s.informer.Lister().ManifestWorks(cluster).Get(name)
	if err != nil {
		return nil
	}
	return w
}

// awaitCondition waits until the source knows a condition of the work, for its generation when that is given.
func (s *source) awaitCondition(cluster, name, condition string, status metav1.ConditionStatus,
	generation int64) *workv1.ManifestWork {
	s.t.Helper()
	var found, w *workv1.ManifestWork
	err := await(fmt.Sprintf("the source sees %s of %s=%s", condition, name, status), func() error {
		w = s.work(cluster, name)
		if w == nil {
			return errors.New("the informer does not have it")
		}
		for _, c := range w.Status.Conditions {
			if c.Type == condition && c.Status == status && (generation == 0 || c.ObservedGeneration == generation) {
				found = w
				return nil
			}
		}
		return fmt.Errorf("its annotations are %v, its conditions %+v", w.Annotations, w.Status.Conditions)
	})
	if err != nil && w != nil {
		code, body := s.server.call(s.t, "GET", "/v1/resource-bundles/"+string(w.UID), "")
		s.t.Fatalf("%v; Maestro answers %d %s", err, code, body)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

func (s *source) awaitGone(cluster, name string) {
	s.t.Helper()
	eventually(s.t, "the source sees "+name+" go", func() error {
		if w := s.work(cluster, name); w != nil {
			return fmt.Errorf("it is there: %+v", w.Status.Conditions)
		}
		return nil
	})
}

var workFeatures = sync.OnceValue(func() error {
	if err := features.SpokeMutableFeatureGate.Add(ocmfeature.DefaultSpokeWorkFeatureGates); err != nil {
		return err
	}
	return features.SpokeMutableFeatureGate.SetFromMap(map[string]bool{string(ocmfeature.RawFeedbackJsonString): true})
})

// startWorkAgent runs OCM's work agent, as the original's agent does. It ends by the function that is returned, at the
// latest with the test.
func (s *server) startWorkAgent(t *testing.T, c *cluster, w way, addr string) (stop func()) {
	t.Helper()
	return startWorkAgentOn(t, c, w, s.config(t, w, addr, s.world.identity(t, c.name)))
}

// startWorkAgentOn is startWorkAgent with a configuration file that leads to any server.
func startWorkAgentOn(t *testing.T, c *cluster, w way, config string) (stop func()) {
	t.Helper()
	if err := workFeatures(); err != nil {
		t.Fatal(err)
	}
	common, agent := commonoptions.NewAgentOptions(), spoke.NewWorkloadAgentOptions()
	common.SpokeClusterName = c.name
	common.CommonOpts.QPS, common.CommonOpts.Burst = 200, 400
	agent.StatusSyncInterval = 2 * time.Second // the default of 10 s is for fewer questions, not for other answers
	agent.MaxJSONRawLength = 1 << 20
	agent.WorkloadSourceDriver = string(w)
	agent.WorkloadSourceConfig = config
	agent.CloudEventsClientID = c.name + "-agent"
	kube, err := clientcmd.BuildConfigFromFlags("", c.admin)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := spoke.NewWorkAgentConfig(common, agent).RunWorkloadAgent(ctx, &controllercmd.ControllerContext{
			KubeConfig: kube, EventRecorder: events.NewInMemoryRecorder("work-agent", clock.RealClock{}),
		})
		if err != nil && ctx.Err() == nil {
			t.Errorf("OCM's work agent: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// agentClient is the agent side of OCM's SDK without an agent: a client of works and its informer.
type agentClient struct {
	works    workv1client.ManifestWorkInterface
	informer workv1informers.ManifestWorkInformer
	stop     func()
}

func (s *server) startAgentClient(t *testing.T, cluster string, w way, addr string) *agentClient {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	store := workstore.NewAgentInformerWatcherStore()
	holder, err := work.NewAgentClientHolder(ctx, options.NewGenericClientOptions(
		load(t, w, s.config(t, w, addr, s.world.identity(t, cluster))), agentcodec.NewManifestBundleCodec(), cluster+
			"-agent").
		WithClusterName(cluster).WithClientWatcherStore(store))
	if err != nil {
		t.Fatal(err)
	}
	informer := workinformers.NewSharedInformerFactoryWithOptions(holder.WorkInterface(), time.Hour,
		workinformers.WithNamespace(cluster)).Work().V1().ManifestWorks()
	go informer.Informer().Run(ctx.Done())
	return &agentClient{works: holder.ManifestWorks(cluster), informer: informer, stop: cancel}
}
