//go:build realnodes

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	typed "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"atoll.dev/node"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// TestMain is also the first process of the nodes that the tests start.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"node", "init"}) {
		if err := RunInit(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(planetest.Main(m))
}

// readyWait exceeds every wait of these tests unless something hangs.
const readyWait = 2 * time.Minute

// realWorld is a plane with nodes that run in this process.
type realWorld struct {
	t      *testing.T
	client typed.Interface
	token  string
	plane  node.APIServer
}

// programsPath returns bin/atoll-node of this repository.
func programsPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/atoll-node")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// newRealWorld starts a plane in which a token lets kubelets join.
func newRealWorld(t *testing.T) *realWorld {
	t.Helper()
	if missing := Preflight(programsPath(t)); len(missing) > 0 {
		t.Skip(MissingError(missing))
	}
	p := planetest.Start(t)
	config, err := p.Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	client, err := typed.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &realWorld{t: t, client: client, plane: node.APIServer{Address: p.Config.Address, ServerName: "localhost",
		UnnamedAddress: p.Config.Address, CA: string(config.CAData), Advertised: "172.20.0.1:6443"}}
	ctx := t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "joiner"}}
	if _, err := client.CoreV1().ServiceAccounts("kube-system").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	joiner := rbacv1.Subject{Kind: "ServiceAccount", Namespace: "kube-system", Name: "joiner"}
	nodes := rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:nodes"}
	for role, subject := range map[string]rbacv1.Subject{
		"system:node-bootstrapper": joiner,
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient": joiner,
		"system:node-proxier": nodes,
	} {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "test:" + role},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{subject}}
		if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	token, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "joiner", &authv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.token = token.Status.Token
	return w
}

// runNode runs the node number i until stop is called, which returns the error of Run.
func (w *realWorld) runNode(i int) (c node.Config, stop func() error) {
	w.t.Helper()
	home, err := os.MkdirTemp("", "atoll-node-")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = os.RemoveAll(home) })
	c = node.Config{Name: fmt.Sprintf("w%d", i), ProviderID: fmt.Sprintf("atoll:///w%d", i), Home: home,
		Programs: programsPath(w.t), APIServer: w.plane, BootstrapToken: w.token,
		Labels: map[string]string{"example.org/pool": "test"},
		Network: node.Network{ClusterCIDR: "10.132.0.0/14", ServiceCIDR: "10.96.0.0/16",
			PodCIDR: fmt.Sprintf("10.132.%d.0/24", i), Bridge: fmt.Sprintf("an%d", os.Getpid()),
			Address: fmt.Sprintf("10.90.3.%d/24", 10+i)},
		Resources: node.Resources{CPU: resource.MustParse("1"), Memory: resource.MustParse("1Gi"), Pods: 20,
			Disk: resource.MustParse("1Gi")},
		Images: node.Images{Preload: []string{filepath.Join(filepath.Dir(programsPath(w.t)), "demo-image.tar")}},
	}
	if err := c.Validate(); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, c, testsite.Log(w.t)) }()
	var result error
	stopped := false
	stop = func() error {
		cancel()
		if !stopped {
			result, stopped = <-ended, true
		}
		return result
	}
	w.t.Cleanup(func() { _ = stop() })
	return c, stop
}

// demoPod returns a pod of the demo image on a node.
func demoPod(name, onNode string, args ...string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod": name}},
		Spec: corev1.PodSpec{NodeName: onNode, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "demo", Image: "atoll.dev/demo:v1", Args: args,
				ImagePullPolicy: corev1.PullNever}}}}
}

// startPod creates a pod and returns it once done is true.
func (w *realWorld) startPod(pod *corev1.Pod, done func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	pods := w.client.CoreV1().Pods("default")
	testsite.EventuallyWithin(w.t, "the pod "+pod.Name+" is accepted", readyWait, func() error {
		_, err := pods.Create(w.t.Context(), pod, metav1.CreateOptions{}) // its service account is made in the background
		return err
	})
	var now *corev1.Pod
	testsite.EventuallyWithin(w.t, "the pod "+pod.Name, readyWait, func() error {
		var err error
		if now, err = pods.Get(w.t.Context(), pod.Name, metav1.GetOptions{}); err == nil && !done(now) {
			err = fmt.Errorf("phase %s, %+v", now.Status.Phase, now.Status.ContainerStatuses)
		}
		return err
	})
	return now
}

func podIsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// get requests a URL from the network namespace of a process.
func get(pid int, url string) (string, error) {
	type answer struct {
		text string
		err  error
	}
	result := make(chan answer)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		text, err := func() (string, error) {
			space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
			if err != nil {
				return "", err
			}
			defer space.Close()
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
				return "", err
			}
			return request(url)
		}()
		result <- answer{text, err}
	}()
	a := <-result
	return a.text, a.err
}

// TestARealNodeRunsPods starts a plane and two nodes once and tries what their pods need.
func TestARealNodeRunsPods(t *testing.T) {
	w := newRealWorld(t)
	first, stopFirst := w.runNode(1)
	second, stopSecond := w.runNode(2)
	for _, c := range []node.Config{first, second} {
		testsite.EventuallyWithin(t, "node "+c.Name+" is Ready", readyWait, func() error {
			n, err := w.client.CoreV1().Nodes().Get(t.Context(), c.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					if got := n.Status.Allocatable.Memory().String(); got != "1Gi" {
						t.Errorf("node %s: allocatable memory %s, want 1Gi", c.Name, got)
					}
					if n.Labels["example.org/pool"] != "test" || n.Spec.ProviderID != c.ProviderID {
						t.Errorf("node %s: labels %v, provider id %s", c.Name, n.Labels, n.Spec.ProviderID)
					}
					return nil
				}
			}
			return errors.New("not Ready")
		})
		testsite.EventuallyWithin(t, "all programs of "+c.Name, readyWait, func() error {
			status, err := node.ReadStatus(c.Home)
			if err == nil && (status.State != node.Up || status.Programs["atoll-node"].PID == 0) {
				err = fmt.Errorf("status %+v", status)
			}
			return err
		})
	}
	status, err := node.ReadStatus(first.Home)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("a pod is reached from another node and by its Service", func(t *testing.T) {
		pod := w.startPod(demoPod("b", second.Name), podIsReady)
		text, err := get(status.Init, "http://"+pod.Status.PodIP+":8080/")
		if err != nil || text != "b\n" {
			t.Errorf("the pod's address answers %q, error %v", text, err)
		}
		service, err := w.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"pod": "b"},
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		testsite.EventuallyWithin(t, "the Service answers", readyWait, func() error {
			text, err := get(status.Init, "http://"+service.Spec.ClusterIP+"/")
			if err == nil && text != "b\n" {
				err = fmt.Errorf("it answers %q", text)
			}
			return err
		})
	})
	t.Run("a container that exceeds its memory is ended", func(t *testing.T) {
		pod := demoPod("m", first.Name, "allocate", "200")
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("64Mi")}
		got := w.startPod(pod, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if end := got.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 137 {
			t.Errorf("the container ended with %+v, want exit code 137", end)
		}
	})
	t.Run("a fork bomb ends at its pod, and its neighbours start processes", func(t *testing.T) {
		w.startPod(demoPod("f", first.Name, "fork"), podIsReady)
		testsite.EventuallyWithin(t, "the fork bomb is refused", readyWait, func() error {
			logs, err := filepath.Glob(insideOf(t, first, "/var/log/pods/default_f_*/*/*.log")) // no konnectivity here
			if err != nil || len(logs) != 1 {
				return fmt.Errorf("logs %q, error %v", logs, err)
			}
			data, err := os.ReadFile(logs[0])
			if err == nil && !strings.Contains(string(data), "others is refused") {
				err = fmt.Errorf("its log is %q", data)
			}
			return err
		})
		var ofPod, ofPods, ofNode int
		for path, value := range processLimits(t, machineNamesOf(first).cgroup) {
			switch depth := strings.Count(path, "/"); {
			case depth == 0:
				ofNode = value
			case path == "/kubepods":
				ofPods = value
			case strings.Contains(filepath.Base(path), "pod") && value == processesOfPod:
				ofPod = value
			}
		}
		if want := limitsOf(first.Resources, machineSize{}).processes; int64(ofNode) != want ||
			ofPods != processesOfPods || ofPod != processesOfPod {
			t.Errorf("limits of the node %d, its pods %d, one of them %d; want %d, %d, %d", ofNode, ofPods, ofPod, want,
				processesOfPods, processesOfPod)
		}
		w.startPod(demoPod("g", first.Name), podIsReady) // runc, a shim and the program itself
	})
	t.Run("a node fills its disk and not the machine's", func(t *testing.T) { checkDisk(t, second) })
	t.Run("a killed node comes back", func(t *testing.T) {
		if err := unix.Kill(status.Init, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		testsite.EventuallyWithin(t, "the node is up again", readyWait, func() error {
			now, err := node.ReadStatus(first.Home)
			if err == nil && (now.State != node.Up || now.Init == status.Init) {
				err = fmt.Errorf("status %+v", now)
			}
			return err
		})
	})
	t.Run("a stopped node leaves nothing", func(t *testing.T) {
		if err := errors.Join(stopFirst(), stopSecond()); err != nil {
			t.Fatal(err)
		}
		all, err := readHierarchies()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []node.Config{first, second} {
			awaitNoLoop(t, c)
			for _, h := range all {
				if _, err := os.Stat(filepath.Join(h.Path, machineNamesOf(c).cgroup)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s has the cgroup of %s", h.Path, c.Name)
				}
			}
			for _, link := range []string{machineNamesOf(c).link, c.Network.Bridge} {
				if _, err := os.Stat("/sys/class/net/" + link); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("link %s is there", link)
				}
			}
		}
	})
}

// request requests a URL with a connection of its own, in the calling thread's network namespace.
func request(url string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	host := req.URL.Host
	if req.URL.Port() == "" {
		host = net.JoinHostPort(host, "80")
	}
	conn, err := net.DialTimeout("tcp", host, 10*time.Second) // an address: the dial needs no other thread
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if err := req.Write(conn); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}
