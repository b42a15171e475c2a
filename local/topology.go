package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/envelope"
	"atoll.dev/internal/postgres"
	"atoll.dev/pki"
	"atoll.dev/plane"
)

// Process names. A management cluster's processes carry its name.
const (
	supervisorName = "supervisor"
	postgresName   = "postgres"
	pkiName        = "pki"
	brokerName     = "broker"
	maestroName    = "maestro"
	clmName        = "clm"
	adapterName    = "adapter"
	platformName   = "platform"
)

// Databases; a role of the same name owns each, and no other role can read it.
const (
	platformDatabase = "platform"
	clmDatabase      = "clm"
	maestroDatabase  = "maestro"
)

func planeName(mc cluster.ManagementCluster) string { return string(mc + "-plane") }
func agentName(mc cluster.ManagementCluster) string { return string(mc + "-agent") }

// Phases of `down`: the lower stop first.
const (
	phaseEdges    = 1 // callers of other services: agents, hosting, routers and the API
	phaseServices = 2 // and customers' planes, after hosting, which would start them again
	phaseBases    = 3 // the CA, the broker and the management clusters
	phaseDatabase = 4
)

// Binaries are the programs that a region runs.
type Binaries struct {
	Atoll string // this program, or that of another version
	Kube  string // atoll-kube

	KubeVersion string // of Kubernetes in it, as 1.36.3

	Version string            `json:",omitempty"` // of Atoll, where the declaration of the region names one
	Kubes   map[string]string `json:",omitempty"` // other programs atoll-kube and Kube, by their KubeVersion
}

// findBinaries locates atoll-kube beside this program, as `make build` puts it.
func findBinaries() (Binaries, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return Binaries{}, fmt.Errorf("finding this program: %w", err)
	}
	kube := filepath.Join(filepath.Dir(self), "atoll-kube")
	if other := os.Getenv("ATOLL_KUBE_BIN"); other != "" {
		kube = other
	}
	if _, err := os.Stat(kube); err != nil {
		return Binaries{}, fmt.Errorf("%w; build it with `make build`", err)
	}
	release, err := kubeVersion(context.Background(), kube)
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{Atoll: self, Kube: kube, KubeVersion: release}, nil
}

// topology derives the processes of a region from the state of its home.
type topology struct {
	home Home
	st   State
	bin  Binaries
	db   *postgres.Cluster
}

func newTopology(h Home, st State, bin Binaries) topology {
	return topology{home: h, st: st, bin: bin, db: databaseOf(st)}
}

// portNames lists every port that the processes of st listen on.
func portNames(st State) []string {
	names := []string{
		"pki", "pki-ops", "mqtt", "broker-ops", "maestro-http", "maestro-grpc", clmPort, "platform",
	}
	for _, service := range replicatedServices {
		for number := range st.declaredSettings().replicas(service) {
			names = append(names, replica{service, number + 1}.opsPort())
		}
	}
	if st.Insecure {
		names = append(names, plainHTTP, plainGRPC, plainCLM)
	}
	if st.Azure {
		names = append(names, azurePort, azureGatewayName, azureGatewayName+"-ops")
	}
	if st.Backups {
		names = append(names, objectStoreName, objectStoreName+"-ops", regionBackupName+"-ops")
	}
	for _, c := range st.Clusters {
		names = append(names, planeName(c), agentName(c)+"-ops", hostingName(c)+"-ops", routerName(c),
			routerName(c)+"-ops")
	}
	return names
}

func (t topology) address(port string) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(t.st.Ports[port]))
}

func (t topology) url(port string) string { return "https://" + t.address(port) }

// specs lists the processes; each comes after the processes that it depends on.
func (t topology) specs() []Spec {
	specs := []Spec{t.postgres(), t.pki(), t.broker()}
	specs = append(specs, t.replicaSpecs(maestroName, t.maestro)...)
	specs = append(specs, t.replicaSpecs(clmName, t.clm)...)
	if t.st.Azure {
		specs = append(specs, t.azureGateway())
	}
	if t.st.Backups {
		specs = append(specs, t.objectStore(), t.regionBackup())
	}
	specs = append(specs, t.replicaSpecs(platformName, t.platform)...)
	if t.runsAdapters() {
		specs = append(specs, t.replicaSpecs(adapterName, t.adapter)...)
	}
	for _, c := range t.st.Clusters {
		specs = append(specs, t.plane(c), t.agent(c), t.hosting(c), t.router(c))
	}
	settings := t.st.declaredSettings().processSettings()
	for i, s := range specs {
		specs[i] = s.with(settings[s.Name])
	}
	return specs
}

func (t topology) postgres() Spec {
	s := Spec{
		Name: postgresName, Address: t.st.Postgres.SocketDir, Stop: postgres.StopSignal, Phase: phaseDatabase,
		Prepare: func(ctx context.Context) error {
			if err := t.db.Init(ctx); err != nil {
				return err
			}
			return t.db.Prepare(ctx)
		},
		Ready: t.db.Ping,
		Finish: func(ctx context.Context) error {
			for _, name := range []string{platformDatabase, clmDatabase, maestroDatabase} {
				if err := t.db.EnsureDatabase(ctx, name, name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd, err := t.db.Command()
	if err != nil {
		s.Prepare = func(context.Context) error { return err }
		return s
	}
	s.Args, s.Env, s.Dir = cmd.Args, cmd.Env, cmd.Dir
	if cmd.SysProcAttr != nil {
		s.User = cmd.SysProcAttr.Credential
	}
	return s
}

func (t topology) pki() Spec {
	return t.completeService(Spec{
		Name: pkiName, Address: t.url("pki"), Phase: phaseBases,
		Args: []string{"pki", "serve", "--dir", t.home.CADir(), "--listen", t.address("pki"), "--ca-file",
			t.home.CAFile()},
	}, "pki", "pki-ops")
}

func (t topology) broker() Spec {
	return t.withIdentity(t.completeService(Spec{
		Name: brokerName, Address: "mqtts://" + t.address("mqtt"), Phase: phaseBases, After: []string{pkiName},
		Args: []string{"broker", "--listen", t.address("mqtt")},
	}, "mqtt", "broker-ops"), pki.ServiceName(brokerName), t.home.Path("identities", brokerName))
}

// Ports of Maestro's plain listeners.
const (
	plainHTTP = "maestro-http-plain"
	plainGRPC = "maestro-grpc-plain"
)

func (t topology) maestro(r replica) Spec {
	args := []string{"maestro", "--dsn", t.db.DSN(maestroDatabase, maestroDatabase),
		"--http", t.address("maestro-http"), "--grpc", t.address("maestro-grpc"), "--mqtt", t.address("mqtt"), "--clm",
		t.url(clmPort), "--envelope-key-file", t.envelopeKeys()}
	ports := []string{"maestro-http", "maestro-grpc"}
	if t.st.Insecure {
		args = append(args, "--insecure-listen", "rest="+t.address(plainHTTP)+",grpc="+t.address(plainGRPC))
		ports = append(ports, plainHTTP, plainGRPC)
	}
	return t.withIdentity(t.withSharedPorts(t.completeService(Spec{
		Name: r.name(), Address: t.url("maestro-http"), Phase: phaseServices,
		After: r.startsAfter(postgresName, pkiName, brokerName), Args: args,
		Prepare: func(context.Context) error { return envelope.EnsureKeyFile(t.envelopeKeys()) },
	}, append(ports, r.opsPort())...)), pki.ServiceName(maestroName), t.home.Path("identities", r.name()))
}

func (t topology) platform(r replica) Spec {
	args := []string{"platform", "--region", t.st.Region, "--dsn", t.db.DSN(platformDatabase, platformDatabase),
		"--seal-key", t.sealKey(), "--listen", t.address("platform"),
		"--maestro-http", t.url("maestro-http"), "--maestro-grpc", t.address("maestro-grpc"), "--clm", t.url(clmPort)}
	providers := []string{string(cluster.Simulated), string(cluster.External)}
	if t.st.Nodes == string(cluster.Local) {
		providers = append([]string{string(cluster.Local)}, providers...)
	}
	args = append(args, "--node-providers", strings.Join(providers, ","))
	if shown := t.st.declaredSettings().PlacementShownTo; shown != "" {
		args = append(args, "--placement-shown-to", shown)
	}
	after, ports := r.startsAfter(postgresName, pkiName, maestroName), []string{"platform"}
	if t.st.Backups {
		args, after = append(args, t.auditExport()...), append(after, objectStoreName)
	}
	if t.st.Azure {
		args, after, ports = append(args, t.azureArgs()...), append(after, azureGatewayName), append(ports, azurePort)
	}
	return t.withIdentity(t.withSharedPorts(t.completeService(Spec{
		Name: r.name(), Address: t.url("platform"), Phase: phaseEdges, After: after, Args: args,
		Prepare: t.ensureAdminKey,
	}, append(ports, r.opsPort())...)), pki.ServiceName(platformName), t.home.Path("identities", r.name()))
}

func (t topology) plane(mc cluster.ManagementCluster) Spec {
	cfg := t.planeConfig(mc)
	return Spec{
		Name: planeName(mc), Args: append([]string{cfg.Binary}, cfg.Args()...), Address: "https://" +
			cfg.Address, Ports: []int{t.st.Ports[planeName(mc)]},
		Prepare: func(context.Context) error { return os.MkdirAll(cfg.Dir, 0o700) },
		Ready:   cfg.Ready, Phase: phaseBases, Stop: syscall.SIGTERM,
	}
}

func (t topology) planeConfig(mc cluster.ManagementCluster) plane.Config {
	return plane.Config{
		Name: string(mc), Dir: t.home.Path("management", string(mc), "plane"),
		Binary: t.bin.Kube, Address: t.address(planeName(mc)),
	}
}

func (t topology) agent(mc cluster.ManagementCluster) Spec {
	dir := t.home.Path("management", string(mc), "agent")
	return t.withIdentity(t.completeService(Spec{
		Name: agentName(mc), Phase: phaseEdges,
		After: []string{planeName(mc), pkiName, brokerName, maestroName, clmName, platformName},
		Args: []string{"agent", "--consumer-name", string(mc), "--kubeconfig", filepath.Join(dir, "agent.kubeconfig"),
			"--mqtt", t.address("mqtt"), "--data-dir", filepath.Join(dir, "store")},
		Prepare: func(ctx context.Context) error { return t.prepareAgent(ctx, mc, dir) },
	}, agentName(mc)+"-ops"), pki.Name(mc), filepath.Join(dir, "identity"))
}

// completeService completes the spec of an Atoll service: the program, its ports (the last serves health
// and metrics), and its readiness check.
func (t topology) completeService(s Spec, ports ...string) Spec {
	ops := t.address(ports[len(ports)-1])
	s.Args = append(append([]string{t.bin.Atoll}, s.Args...), "--ops", ops)
	s.Stop = syscall.SIGTERM
	if t.bin.Version != "" { // the program may have been replaced in its place
		s.Env = append(slices.Clone(s.Env), "ATOLL_VERSION="+t.bin.Version)
	}
	for _, p := range ports {
		s.Ports = append(s.Ports, t.st.Ports[p])
	}
	s.Ready = func(ctx context.Context) error { return getOK(ctx, "http://"+ops+"/readyz") }
	return s
}

// withIdentity adds the enrolment for a certificate to a spec: the service generates its key in dir
// and sends a certificate request with a one-time token. Prepare writes the token while the service
// has no certificate.
func (t topology) withIdentity(s Spec, name pki.Name, dir string) Spec {
	token := filepath.Join(dir, "token")
	s.Args = append(s.Args, "--identity", dir, "--pki", t.url("pki"), "--ca", t.home.CAFile(), "--token-file", token)
	prepare := s.Prepare
	s.Prepare = func(ctx context.Context) error {
		if !pki.Enrolled(t.home.CADir(), dir, name) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			verb := []string{"pki", "token"}
			if !name.IsService() {
				verb = []string{"mc", "join-token"} // as a person lets any other cluster join
			}
			if _, err := t.runAtoll(ctx, append(verb, string(name), "--out", token)...); err != nil {
				return err
			}
		}
		if prepare == nil {
			return nil
		}
		return prepare(ctx)
	}
	return s
}

var probeClient = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// getOK returns nil when a GET of url is answered with 200.
func getOK(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := probeClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// runAtoll runs a command of the program atoll for this home and returns its output.
func (t topology) runAtoll(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, t.bin.Atoll, args...)
	cmd.Env = append(baseEnv(), "ATOLL_HOME="+t.home.Dir)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("atoll %s: %s", strings.Join(args[:min(2, len(args))], " "), strings.TrimSpace(
			string(failed.Stderr)))
	}
	return out, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
