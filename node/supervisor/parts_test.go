package supervisor

import (
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"atoll.dev/node"
	"atoll.dev/test/testsite"
)

func TestAListenerOfANodeForwardsToItsTarget(t *testing.T) {
	target := testsite.Listen(t)
	go func() {
		conn, err := target.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	f := newForwarders(testsite.Log(t))
	defer f.close()
	inside := testsite.Listen(t)
	file, err := inside.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	own, inits, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	other, err := newControl(inits)
	if err != nil {
		t.Fatal(err)
	}
	defer other.conn.Close()
	defer own.conn.Close()
	if err := other.send(message{Listeners: []string{listenAPIServer}}, file); err != nil {
		t.Fatal(err)
	}
	file.Close()
	var m message
	files, err := own.receive(&m)
	if err != nil || len(files) != 1 || len(m.Listeners) != 1 || m.Listeners[0] != listenAPIServer {
		t.Fatalf("received %+v with %d files, error %v", m, len(files), err)
	}
	if err := f.add(files[0], targetAt(target)); err != nil {
		t.Fatal(err)
	}
	address := inside.Addr().String()
	inside.Close() // the received descriptor is the only one now
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "hello" {
		t.Errorf("answer %q, error %v", answer, err)
	}
}

func TestKubeletReservesWhatTheNodeDoesNotHave(t *testing.T) {
	c := node.Config{Network: node.Network{Address: "10.90.3.11/24"},
		Resources: node.Resources{CPU: resource.MustParse("1500m"), Memory: resource.MustParse("1Gi")}}
	reserved := kubeletSettings(order{Config: c}, machineSize{2000, 3 << 30, 32768})["systemReserved"].(map[string]any)
	if reserved["cpu"] != "500m" || reserved["memory"] != "2113929216" || // 3 GiB - 1 GiB - 32 MiB
		reserved["pid"] != "28672" { // 32768 - 4096
		t.Errorf("reserved %v", reserved)
	}
	small := machineSize{milliCPU: 1000, memory: 1 << 29}
	reserved = kubeletSettings(order{Config: c}, small)["systemReserved"].(map[string]any)
	if reserved["cpu"] != "0m" || reserved["memory"] != "0" || reserved["pid"] != "0" {
		t.Errorf("a machine smaller than the node reserves %v", reserved)
	}
}

func TestPodsLeaveTheirNodeProcessesAndNodesTheirMachine(t *testing.T) {
	const most = 250 // pods of a node
	got := limitsOf(node.Resources{CPU: resource.MustParse("2"), Pods: most},
		machineSize{processes: 32768, memory: 8 << 30})
	if got.milliCPU != 2000 || got.allProcesses != 16384 || got.allMemory != 6<<30 {
		t.Errorf("limits %+v", got)
	}
	if left := got.processes - processesOfPods; left < processesOfPrograms+12*most || processesOfPods <= processesOfPod {
		t.Errorf("pods leave %d of %d processes; one pod has %d of the %d of all", left, got.processes, processesOfPod,
			processesOfPods)
	}
	m, err := readMachineSize()
	if err != nil || m.processes < 1000 {
		t.Errorf("the machine permits %d processes, error %v", m.processes, err)
	}
}

func TestTheMirrorIsReachedByItsNameInTheNode(t *testing.T) {
	for mirror, want := range map[string]string{
		"http://127.0.0.1:5001":           `[host."http://127.0.0.1:5000"]`,
		"https://mirror.example.org/v2/a": `[host."https://mirror.example.org:5000/v2/a"]`,
	} {
		u, err := url.Parse(mirror)
		if err != nil {
			t.Fatal(err)
		}
		if got := mirrorSettings(u); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", mirror, got)
		}
	}
	if got := mirrorAddress("https://mirror.example.org/v2/a"); got != "mirror.example.org:443" {
		t.Errorf("the supervisor dials %s", got)
	}
}

func TestAMissingPartIsNamedWithTheRemedy(t *testing.T) {
	if err := MissingError(nil); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
	_, err := os.Stat("/no/atoll-node")
	missing := Preflight("/no/atoll-node")
	if got := MissingError(missing); got == nil {
		t.Errorf("a machine without atoll-node (%v) passes", err)
	} else if !strings.Contains(got.Error(), "make nodes") && !strings.Contains(got.Error(), "root") {
		t.Errorf("error %v", got)
	}
}
