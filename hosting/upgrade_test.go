package hosting

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/quick"
)

// program makes a release whose program is a shell script.
func (w *world) program(release controlplane.Version, script string) {
	w.Helper()
	path := filepath.Join(w.TempDir(), "atoll-kube")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		w.Fatal(err)
	}
	w.planes.Binaries[release] = path
}

// upgradeIs waits until the last upgrade of a cluster is in a phase, and the plane serves with a release.
func (w *world) upgradeIs(key controlplane.ID, phase hypershift.UpgradePhase, release controlplane.Version,
) *hypershift.HostedCluster {
	w.Helper()
	var hc *hypershift.HostedCluster
	w.wait(string(phase)+" of "+key.String(), func() error {
		hc = w.get(key)
		o := w.observe(key)
		if u := hc.Status.Upgrade; u == nil || u.Phase != phase || o.State != controlplane.Ready ||
			o.LastStart.Served != release || !meta.IsStatusConditionTrue(hc.Status.Conditions, hypershift.Available) {
			return errStill
		}
		return nil
	})
	return hc
}

func (w *world) order(key controlplane.ID, release string) {
	w.Helper()
	w.patch(key, `{"spec":{"release":{"image":"atoll.dev/release:`+release+`"}}}`)
}

// versions are the releases of the history, the newest first; that of one that never served has a question mark.
func versions(hc *hypershift.HostedCluster) string {
	var list []string
	for _, h := range hc.Status.Version.History {
		mark := "?"
		if h.State == hypershift.Completed {
			mark = ""
		}
		list = append(list, h.Version+mark)
	}
	return strings.Join(list, " ")
}

// The limit until a plane is ready begins anew after a stop: a plane that was put to sleep during an upgrade, or whose
// machine was off, has not failed.
func TestTheLimitOfAnUpgradeBeginsAnewAfterAStop(t *testing.T) {
	now, limits := powerZero, Upgrades{}.withDefaults()
	o := controlplane.Observation{State: controlplane.Starting, Running: true,
		LastStart: controlplane.LastStart{Release: "1.36.4", Served: "1.36.3"}}
	u := nextUpgrade(nil, "1.36.4", o, limits, now)
	o.State, o.Running = controlplane.Down, false
	now = now.Add(time.Hour)
	u = nextUpgrade(u, "1.36.4", o, limits, now)
	o.State, o.Running = controlplane.Starting, true
	if u = nextUpgrade(u, "1.36.4", o, limits, now); u.Phase != hypershift.UpgradeRuns {
		t.Fatalf("after a stop of an hour the upgrade is %s: %s", u.Phase, u.Message)
	}
	if u = nextUpgrade(u, "1.36.4", o, limits, now.Add(limits.ReadyLimit)); u.Phase != hypershift.UpgradeFailed {
		t.Errorf("a plane that is not ready after %s is %s", limits.ReadyLimit, u.Phase)
	}
}

// orderedBackups records the last order of a restore.
type orderedBackups struct {
	noBackups
	order controlplane.RestoreOrder
}

func (b *orderedBackups) Prepare(_ controlplane.ID, o controlplane.RestoreOrder) controlplane.Preparation {
	b.order = o
	return controlplane.Preparation{}
}

// After a failed upgrade the spec has the release that does not work. The data of a restore is made with the other one.
func TestARestoreAfterAFailedUpgradeUsesTheReleaseThatRuns(t *testing.T) {
	b := &orderedBackups{}
	h := &Hosting{o: Options{Backups: b, Releases: Releases{"1.36.3", "1.36.4"}}}
	hc := newSituation().Cluster
	hc.Spec.Release.Image = cluster.ReleaseImage("1.36.4")
	hc.Annotations = map[string]string{hypershift.RestoreAnnotation: `{"id":"r1","at":"2026-01-01T00:00:00Z"}`}
	for phase, want := range map[hypershift.UpgradePhase]controlplane.Version{
		hypershift.UpgradeFailed: "1.36.3", hypershift.UpgradeSoaks: "1.36.4", hypershift.UpgradeRolledBack: "1.36.4",
	} {
		hc.Status.Upgrade = &hypershift.UpgradeStatus{Phase: phase, From: "1.36.3", To: "1.36.4"}
		h.findRestore(&hostedCluster{}, hc, controlplane.LastStart{Release: "1.36.3"})
		if b.order.Release != want {
			t.Errorf("%s: the data is made with %s, want %s", phase, b.order.Release, want)
		}
	}
}

// A release whose program ends at once, and one whose plane never becomes ready, cost a cluster some seconds: it serves
// with the release before, also when hosting ends between. What was upgraded goes back in the soak.
func TestI12AClusterOutlivesAFailedUpgradeAndGoesBack(t *testing.T) {
	quick.Slow(t, "upgrades a plane and goes back several times")
	w := newWorld(t, "upgrade")
	w.stop()
	w.program("1.36.5", `echo "atoll-kube: wrong machine" >&2; exit 1`)
	w.program("1.36.6", `[ "$1" = serve ] && exec sleep 3600; exit 2`)
	w.start()
	key := w.create("one", nil)
	_, c := w.available(key)
	w.keep(c, "before")

	t.Log("a program that ends")
	w.order(key, "1.36.5")
	hc := w.condition(key, hypershift.ValidReleaseImage, "False", "UpgradeFailed")
	if c := meta.FindStatusCondition(hc.Status.Conditions, hypershift.ValidReleaseImage); !strings.Contains(c.Message,
		"the upgrade to 1.36.5 failed, and the control plane went back to 1.36.3: ") ||
		!strings.Contains(c.Message, "wrong machine") {
		t.Errorf("the reason is %q", c.Message)
	}
	hc = w.upgradeIs(key, hypershift.UpgradeFailed, "1.36.3")
	if got := versions(hc); got != "1.36.3 1.36.5? 1.36.3" {
		t.Errorf("the history is %s", got)
	}

	t.Log("a plane that never becomes ready, and hostings that end meanwhile")
	w.stop()
	w.options.Upgrades.ReadyLimit = time.Second
	w.start()
	w.order(key, "1.36.6")
	w.wait("the start of 1.36.6", func() error {
		if u := w.get(key).Status.Upgrade; u.To != "1.36.6" || w.observe(key).LastStart.Release != "1.36.6" &&
			u.Phase != hypershift.UpgradeFailed {
			return errStill
		}
		return nil
	})
	w.stop()
	w.start()
	w.condition(key, hypershift.ValidReleaseImage, "False", "UpgradeFailed")
	w.stop()
	w.options.Upgrades = Upgrades{}
	w.start()
	w.upgradeIs(key, hypershift.UpgradeFailed, "1.36.3")
	_, c = w.available(key)
	w.hasConfigMap(c, "before")

	t.Log("the spec has the release before again: the next upgrade begins anew, and serves")
	w.order(key, "1.36.3")
	w.upgradeIs(key, hypershift.UpgradeRolledBack, "1.36.3")
	w.order(key, "1.36.4")
	hc = w.upgradeIs(key, hypershift.UpgradeSoaks, "1.36.4")
	if u := hc.Status.Upgrade; u.SoakUntil == nil || time.Until(u.SoakUntil.Time) < 23*time.Hour {
		t.Errorf("the soak ends at %s", u.SoakUntil)
	}
	staged := w.runtime.Staging(key, hc.Status.Upgrade.Copy)
	if _, err := os.Stat(filepath.Join(staged, "etcd", "member", "snap", "db")); err != nil {
		t.Errorf("there is no copy of the data before the upgrade: %v", err)
	}
	_, c = w.available(key)
	w.keep(c, "upgraded")

	t.Log("in the soak it goes back, with all writes, and the copy goes")
	w.order(key, "1.36.3")
	hc = w.upgradeIs(key, hypershift.UpgradeRolledBack, "1.36.3")
	_, c = w.available(key)
	w.hasConfigMap(c, "before")
	w.hasConfigMap(c, "upgraded")
	w.wait("the end of the copy", func() error {
		if _, err := os.Stat(staged); !os.IsNotExist(err) {
			return errStill
		}
		return nil
	})
	if hc.Status.Upgrade.CopyUsed {
		t.Error("the rollback used the copy")
	}
	w.condition(key, hypershift.ValidReleaseImage, "True", reasonAsExpected)
}
