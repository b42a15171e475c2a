package test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A plane bounds what its users' requests take at the same time: all priority levels together have the seats of
// ATOLL_MAX_REQUESTS, and a list takes more seats the more bytes it reads. Without object counts every list took one
// seat, so hundreds of large lists ran at once.
func TestLargeListsTakeMoreOfABoundedServer(t *testing.T) {
	const maxRequests = 150
	t.Setenv("ATOLL_MAX_REQUESTS", fmt.Sprint(maxRequests))
	dir, listen := dataDir(t), address(t)
	p, _ := startReady(t, dir, listen)
	things := p.client().CoreV1().ConfigMaps("default")
	for i := range 60 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("big-%d", i)},
			Data: map[string]string{"content": strings.Repeat("x", 20_000)}}
		if _, err := things.Create(background, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "reader"}}}
	bindings := p.client().RbacV1().ClusterRoleBindings()
	if _, err := bindings.Create(background, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.stop() // the next start counts the objects at once, and not a minute later
	p, _ = startReady(t, dir, listen)

	p.eventually("the count of ConfigMaps", func() error {
		if n := p.metric(`apiserver_resource_objects{group="",resource="configmaps"}`); n < 60 {
			return fmt.Errorf("%v ConfigMaps are counted", n)
		}
		return nil
	})
	var sum float64
	p.eventually("the seats of all priority levels", func() error {
		sum = p.metric("apiserver_flowcontrol_nominal_limit_seats{")
		if sum == 0 {
			return fmt.Errorf("no priority level has seats")
		}
		return nil
	})
	// Each level's share is rounded up.
	if sum < maxRequests || sum > maxRequests+10 {
		t.Errorf("the priority levels have %v seats together, want %d", sum, maxRequests)
	}

	config := p.config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "reader"} // the administrator's own requests are exempt
	reader, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	seats := func() float64 {
		return p.metric(`apiserver_flowcontrol_work_estimated_seats_sum{flow_schema="global-default"`)
	}
	p.eventually("a list of the reader", func() error { // the default priority levels appear soon after the start
		before := seats()
		if _, err := reader.CoreV1().ConfigMaps("").List(background, metav1.ListOptions{}); err != nil {
			return err
		}
		if took := seats() - before; took < 2 {
			return fmt.Errorf("a list of 1.2 MB took %v seats", took)
		}
		return nil
	})
}

// metric returns the sum of a plane's metrics whose lines begin with a text; 0 when there are none.
func (p *plane) metric(prefix string) (sum float64) {
	p.t.Helper()
	client, err := rest.HTTPClientFor(p.config())
	if err != nil {
		p.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + p.listen + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		p.t.Fatalf("metrics: %s, %v", response.Status, err)
	}
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &value); err != nil {
			p.t.Fatalf("%q: %v", line, err)
		}
		sum += value
	}
	return sum
}
