package hosting

import (
	"crypto/tls"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// The life of a hosted cluster from the first request to its end, with the
// faults and changes that it meets between.
func TestTheLifeOfAHostedCluster(t *testing.T) {
	w := newWorld(t, "life")
	begun := time.Now()
	key := w.create("one", map[string]any{
		"kubeAPIServerDNSName": "one.hosted.test.atoll.internal", "clusterID": w.prefix,
		"networking": map[string]any{
			"clusterNetwork": []any{map[string]any{"cidr": "10.132.0.0/14"}}, "serviceNetwork": []any{
				map[string]any{"cidr": "172.31.0.0/16"}},
			"machineNetwork": []any{map[string]any{"cidr": "10.0.0.0/16"}},
		},
	})
	hc, c := w.available(key)
	took := time.Since(begun)
	readiness, err := (plane.Config{Dir: w.dir(key)}).Readiness()
	t.Logf("available after %s; the plane's own start took %d ms (%v)", took, readiness.StartMS, err)
	pid := w.pid(key)
	w.keep(c, "customer")

	for _, kind := range []string{
		hypershift.ValidConfiguration, hypershift.SupportedHostedCluster, hypershift.ValidReleaseImage, hypershift.ReconciliationActive,
		hypershift.ReconciliationSucceeded, hypershift.InfrastructureReady, hypershift.EtcdAvailable, hypershift.KubeAPIServerAvailable,
	} {
		if !meta.IsStatusConditionTrue(hc.Status.Conditions, kind) {
			t.Errorf("%s is not True: %+v", kind, meta.FindStatusCondition(hc.Status.Conditions, kind))
		}
	}
	for _, kind := range []string{hypershift.Progressing, hypershift.Degraded} {
		if !meta.IsStatusConditionFalse(hc.Status.Conditions, kind) {
			t.Errorf("%s is not False: %+v", kind, meta.FindStatusCondition(hc.Status.Conditions, kind))
		}
	}
	w.managed(hc)
	v := hc.Status.Version
	if v == nil || v.Desired.Version != "1.36.3" || len(v.History) != 1 || v.History[0].State != hypershift.Completed ||
		v.History[0].CompletionTime == nil {
		t.Errorf("version %+v", v)
	}
	if e := hc.Status.ControlPlaneEndpoint; e != (hypershift.APIEndpoint{Host: "127.0.0.1", Port: 1}) ||
		hc.Status.Power != hypershift.Awake {
		t.Errorf("endpoint %+v, power %s", e, hc.Status.Power)
	}
	if k := w.kubeconfig(hc); k.Server != "https://127.0.0.1:1" || k.TLSServerName != "one.hosted.test.atoll.internal" {
		t.Errorf("kubeconfig for %+v", k)
	}
	conn, err := tls.Dial("tcp", w.observe(key).Backend, &tls.Config{InsecureSkipVerify: true,
		ServerName: "one.hosted.test.atoll.internal"})
	if err != nil {
		t.Fatal(err)
	}
	names := conn.ConnectionState().PeerCertificates[0].DNSNames
	conn.Close()
	if !slices.Contains(names, "one.hosted.test.atoll.internal") {
		t.Errorf("the serving certificate names %v ", names)
	}

	t.Log("killed, it comes back by itself")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.wait("another process", func() error {
		if now := w.pid(key); now == pid || now == 0 || w.observe(key).State != controlplane.Ready {
			return errStill
		}
		return nil
	})
	_, c = w.available(key)
	w.hasConfigMap(c, "customer")

	t.Log("a new hosting adopts it, and says nothing of it")
	pid = w.pid(key)
	w.condition(key, hypershift.Degraded, "False", reasonAsExpected)
	version := w.get(key).ResourceVersion
	w.stop()
	if !w.runs(pid, key) {
		t.Fatal("the plane ended with hosting")
	}
	w.start()
	w.wait("the adoption", func() error {
		if w.observe(key).State != controlplane.Ready {
			return errStill
		}
		return nil
	})
	if got := w.pid(key); got != pid {
		t.Errorf("process %d was not adopted; there is %d", pid, got)
	}
	if now := w.get(key).ResourceVersion; now != version {
		t.Errorf("the adoption changed the HostedCluster from version %s to %s", version, now)
	}

	t.Log("paused, an upgrade waits; wrong releases and networks change nothing")
	w.patch(key, `{"spec":{"pausedUntil":"true","release":{"image":"atoll.dev/release:1.36.4"}}}`)
	w.condition(key, hypershift.ReconciliationActive, "False", reasonPaused)
	w.patch(key, `{"spec":{"pausedUntil":null,"release":{"image":"atoll.dev/release:9.9.9"}}}`)
	w.condition(key, hypershift.ValidReleaseImage, "False", reasonVersionNotAvailable)
	w.patch(
		key, `{"spec":{"release":{"image":"atoll.dev/release:1.36.3"},`+
			`"networking":{"serviceNetwork":[{"cidr":"10.0.0.0/20"}]}}}`)
	w.condition(key, hypershift.ValidConfiguration, "False", reasonInvalid)
	hc = w.condition(key, hypershift.Available, "True", reasonAsExpected)
	if got := w.pid(key); got != pid || hc.Status.Version.Desired.Version != "1.36.3" ||
		len(hc.Status.Version.History) != 1 {
		t.Errorf("process %d instead of %d, version %+v", got, pid, hc.Status.Version)
	}

	t.Log("upgraded, it keeps its data")
	w.patch(
		key, `{"spec":{"release":{"image":"atoll.dev/release:1.36.4"},`+
			`"networking":{"serviceNetwork":[{"cidr":"172.31.0.0/16"}]}}}`)
	w.wait("the upgrade", func() error {
		if h := w.get(key).Status.Version.History; len(h) != 2 || h[0].State != hypershift.Completed ||
			h[0].Version != "1.36.4" {
			return errStill
		}
		return nil
	})
	_, c = w.available(key)
	w.hasConfigMap(c, "customer")
	pid = w.pid(key)

	t.Log("deleted, it leaves nothing")
	w.delete(key)
	w.gone(key, pid)
	w.unmanaged()
}
